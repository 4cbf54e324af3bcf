"""Tokenizers of the kinds that people have, trained here on a few lines, and texts to try them on."""

from __future__ import annotations

import random
from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = [
    "The quick brown fox jumps over the lazy dog, twice; it's 1,234.5 metres, isn't it?",
    "def split(text: str) -> list[str]:\n    return [part for part in text.split(' ') if part]\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * 0x1F; } // café, naïve, Ünïcödé",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก",  # noqa: RUF001
    "你好，世界。こんにちは、世界！안녕하세요 세계. Xin chào thế giới",  # noqa: RUF001
    "🌙 👩‍💻 🇫🇷 👍🏽 ½ ² ٣٤ €100 “quoted” … – — ™",  # noqa: RUF001
]
WHITE = [" ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u3000", "    return", "\n "]
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "[INST]", "<unk>"]
ODD = ["\0", "\x7f", "\u200b", "e\u0301", "ﬁ", "\ufffd", "\U000f0000", "\ufeff", "▁", "Ġ", "<0x41>", "##a"]


def texts(count: int) -> list[str]:
    """Whole lines, and what a random choice of their words, spaces, control tokens and oddities makes."""
    chance = random.Random(12)
    words = [word for line in LINES for word in line.split(" ")]
    found = ["", *LINES, *WHITE, *CONTROL, *ODD]
    while len(found) < count:
        pools = chance.choices([words, WHITE, CONTROL, ODD], [6, 3, 1, 1], k=chance.randrange(2, 9))
        found.append("".join(chance.choice(pool) + chance.choice(["", " "]) for pool in pools))
    return found[:count]


def _trained(model: models.Model, trainer: trainers.Trainer, **parts: object) -> Tokenizer:
    backend = Tokenizer(model)
    for name, part in parts.items():
        if part is not None:
            setattr(backend, name, part)
    backend.train_from_iterator(LINES * 3, trainer)
    return backend


def _byte_level(*before: pre_tokenizers.PreTokenizer, use_regex: bool = False, **parts: object) -> Tokenizer:
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend = _trained(
        models.BPE(ignore_merges=bool(parts.pop("ignore_merges", False))),
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False),
        pre_tokenizer=pre_tokenizers.Sequence([*before, bytes_of]),
        decoder=decoders.ByteLevel(),
        **parts,
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL[:4]])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


def gpt2() -> Tokenizer:
    return _byte_level(use_regex=True)


def smollm() -> Tokenizer:
    return _byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def llama3() -> Tokenizer:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend = _byte_level(pre_tokenizers.Split(Regex(pattern), "isolated"), ignore_merges=True)
    bos = backend.token_to_id("<s>")
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return backend


def qwen2() -> Tokenizer:
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _byte_level(pre_tokenizers.Split(Regex(pattern), "isolated"), normalizer=normalizers.NFC())


def falcon() -> Tokenizer:
    return _byte_level(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(), use_regex=True)


def _pieces(prefix: bool) -> Tokenizer:
    """A vocabulary as SentencePiece has it, as BPE, with bytes for what it cannot spell."""
    spaces = [normalizers.Replace(" ", "▁")]
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    join = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend = _trained(
        models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<unk>", "<s>", "</s>", *bytes_of],
            limit_alphabet=60,
            show_progress=False,
        ),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if prefix else spaces),
        decoder=decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join),
    )
    form = backend.to_str().replace('"special":true', '"special":false')
    backend = Tokenizer.from_str(form)  # bytes are no special tokens
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return backend


def llama2() -> Tokenizer:
    backend = _pieces(prefix=True)
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.post_processor = template
    return backend


def gemma() -> Tokenizer:
    backend = _pieces(prefix=False)
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("[INST]", normalized=False)])
    return backend


def _unigram(**parts: object) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return _trained(models.Unigram(), trainer, **parts)


def t5() -> Tokenizer:
    return _unigram(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )


def xglm() -> Tokenizer:
    """A prefix at the very start alone, and an added token that takes the spaces beside it."""
    backend = _unigram(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoder=decoders.Sequence([decoders.Metaspace(), decoders.Replace("\n ", "\n")]),
    )
    backend.add_tokens([AddedToken("<think>", lstrip=True, rstrip=True, normalized=False)])
    return backend


def bert() -> Tokenizer:
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    return _trained(
        models.WordPiece(unk_token="<unk>"),
        trainer,
        normalizer=normalizers.BertNormalizer(lowercase=True),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )


def gpt1() -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "</s>"], end_of_word_suffix="</w>", show_progress=False
    )
    return _trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainer,
        normalizer=normalizers.BertNormalizer(lowercase=True),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.BPEDecoder("</w>"),
    )


def words() -> Tokenizer:
    """Whole words, which no decoder joins."""
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"], show_progress=False)
    return _trained(
        models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizer=pre_tokenizers.WhitespaceSplit()
    )


TWELVE: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: make
    for make in (gpt2, smollm, llama3, qwen2, falcon, llama2, gemma, t5, xglm, bert, gpt1, words)
}
