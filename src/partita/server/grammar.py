"""Texts that must follow a form: which tokens may come next, by llguidance.

A grammar is made where its request is read, not where steps are run; what may come next is found while the
devices find the logits. Both are bounded by llguidance's own limits on work, so that no form stops others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Set
from typing import Any

import llguidance
import numpy as np

from partita.checkpoints.tokenizer import Tokenizer
from partita.errors import InputError, one_line
from partita.server.forms import Form

_LIMITS = llguidance.LLParserLimits(verbose_errors=False)
_OPTIONS: Any = {"whitespace_flexible": False}
"""With spaces anywhere, a model that is unsure goes on with them for ever."""
_SHOWN = 300


class Grammar:
    """What a text must follow, for any number of samples."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int):
        self._matcher, self._vocabulary = matcher, vocabulary

    def follower(self) -> Follower:
        return Follower(self._matcher.deep_copy(), self._vocabulary)


class Follower:
    """One text on its way through a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int):
        self._matcher, self._vocabulary = matcher, vocabulary
        self.error = ""
        """Why it can be followed no further, where it went beyond the limits."""

    def allowed(self) -> np.ndarray | None:
        """Which tokens [vocabulary] may come next; None where there is an `error`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            self.error = _short(self._matcher.get_error()) or "unknown"
            return None
        return np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)

    def took(self, token: int) -> bool:
        """A token was drawn; whether more may come."""
        return self._matcher.consume_token(token) and not self._matcher.is_stopped()


class Grammars:
    """Makes grammars over the tokens of a model, which it prepares when first asked; from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Set[int]):
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, ends
        self._tokens: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()

    def of(self, form: Form) -> Grammar:
        """Raises InputError naming the form's field where it is none, or too much."""
        tokens = self._prepared(form.field)
        matcher = llguidance.LLMatcher
        try:
            if form.kind == "schema":
                text = matcher.grammar_from_json_schema(json.dumps(form.rule), overrides=_OPTIONS)
            elif form.kind == "regex":
                text = matcher.grammar_from_regex(form.rule)
            else:
                text = matcher.grammar_from_lark(form.rule)
        except (ValueError, RecursionError) as error:
            raise InputError(form.field, None, f"cannot be read: {_short(str(error))}") from None
        found = matcher(tokens, text, log_level=0, limits=_LIMITS)
        if found.is_error():
            raise InputError(form.field, None, f"cannot be followed: {_short(found.get_error())}")
        return Grammar(found, self._vocabulary)

    def _prepared(self, field: str) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokens is None:
                ends: Any = sorted(self._ends) or None
                text = self._tokenizer.backend.to_str()
                try:
                    self._tokens = llguidance.LLTokenizer(text, n_vocab=self._vocabulary, eos_token=ends)
                except Exception as error:
                    message = f"this model's tokens cannot be read as bytes: {_short(str(error))}"
                    raise InputError(field, None, message) from None
            return self._tokens


def _short(text: str) -> str:
    return one_line(text)[:_SHOWN]
