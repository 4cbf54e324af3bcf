"""Caches of prompts that have been read: those that begin with the same tokens are not read again.

Tokens are compared in blocks. A block is found by a hash of its tokens and of all before it, so that a dict
of hashes is a radix tree over blocks; what is found is compared token by token, so that no two hashes need
differ. What was used least recently goes first. Knows arrays only as something to be handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLOCK = 16
"""Tokens of a block, as many as vLLM's."""


@dataclass(eq=False)
class Prefix:
    """The cache of a prompt that has been read to its end; nobody writes to it."""

    ids: tuple[int, ...]
    cache: Any
    hashes: tuple[int, ...]


class Prefixes:
    """At most `most` prompts' caches.

    tail: where layers keep no more than a window, a cache serves only prompts that have all of its tokens but
    so many of the last; None where it serves any part of them.
    """

    def __init__(self, most: int, tail: int | None = None):
        self.most, self.tail = most, tail
        self._kept: dict[Prefix, None] = {}  # least recently used first
        self._blocks: dict[int, dict[Prefix, None]] = {}  # who has it, by the hash of a block and all before

    def __len__(self) -> int:
        return len(self._kept)

    def match(self, ids: Sequence[int]) -> tuple[Prefix | None, int]:
        """The cache with most of the first tokens of `ids`, and how many: whole blocks, less than all."""
        found, tokens = None, 0
        for number, block in enumerate(_hashes(ids[: len(ids) - 1])):
            if block not in self._blocks:
                break
            prefix, end = next(reversed(self._blocks[block])), (number + 1) * BLOCK
            if self.tail is None or len(prefix.ids) - end <= self.tail:
                found, tokens = prefix, end
        if found is None or found.ids[:tokens] != tuple(ids[:tokens]):
            return None, 0
        return found, tokens

    def used(self, prefix: Prefix) -> None:
        """It has served a prompt."""
        if prefix in self._kept:
            self._kept[prefix] = self._kept.pop(prefix)

    def keep(self, ids: Sequence[int], cache: Any) -> None:
        """Keeps the cache of a prompt that was read; not where it has no block that is not kept."""
        hashes = _hashes(ids)
        if not self.most or not hashes or hashes[-1] in self._blocks:
            return
        prefix = Prefix(tuple(ids), cache, tuple(hashes))
        self._kept[prefix] = None
        for block in hashes:
            self._blocks.setdefault(block, {})[prefix] = None
        while len(self._kept) > self.most:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self._blocks.clear()

    def _drop(self, prefix: Prefix) -> None:
        del self._kept[prefix]
        for block in prefix.hashes:
            holders = self._blocks[block]
            del holders[prefix]
            if not holders:
                del self._blocks[block]


def _hashes(ids: Sequence[int]) -> list[int]:
    """Of every full block, with all before it."""
    found, before = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        before = hash((before, *ids[end - BLOCK : end]))
        found.append(before)
    return found
