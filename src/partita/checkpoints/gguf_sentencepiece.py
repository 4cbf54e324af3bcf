"""SentencePiece vocabularies of GGUF files ("llama"), as the merges of a byte-pair encoding.

The file has a score for each piece and no merges: SentencePiece joins the two neighbours that make the piece
of the highest score (Kudo & Richardson 2018, arXiv 1808.06226). So every way to make a piece of two others is
a merge, in the order of the scores. Knows nothing about special tokens but their types.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from partita.checkpoints.gguf_metadata import Metadata

NORMAL, UNKNOWN = 1, 2  # values of tokenizer.ggml.token_type


def backend(metadata: Metadata, tokens: list[str], types: list[int], prefix: bool) -> Backend:
    """What splits text into these pieces, and into bytes where they cannot spell it.

    prefix: whether a space is put before a text. Raises InputError where the scores do not fit the tokens.
    """
    unknown = next((token for token, type in zip(tokens, types, strict=True) if type == UNKNOWN), None)
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=_merges(tokens, types, metadata.numbers("tokenizer.ggml.scores", len(tokens))),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    made = Backend(model)
    steps = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    join = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join)
    return made


def _merges(tokens: list[str], types: list[int], scores: np.ndarray) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, those of the highest score first."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    found = [
        (-scores[i], ids[token[:cut]], ids[token[cut:]])
        for token, i in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]
