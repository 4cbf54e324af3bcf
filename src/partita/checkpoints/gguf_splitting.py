"""How byte-level vocabularies in GGUF files split a text before its parts are merged: `tokenizer.ggml.pre`.

The names, and which of them share a way of splitting, are those of llama.cpp (src/llama-vocab.cpp, commit
00ad355); so are the patterns, but where it notes the pattern of the family's tokenizer.json beside one that
its own regular expressions can do, and where it has code in place of one. There the published one stands
here: "gpt-4o", "tekken", "bailingmoe", "seed-coder", "tiny_aya", "afmoe" and "kimi-k2" (of
tokenization_kimi.py). "falcon" and the normal forms are those of the published tokenizer.json files (Falcon,
Qwen 2, GPT-NeoX, Command R), which llama.cpp leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_HALVED = r"|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _by_case(but: str = "", ending: str = "") -> str:
    """Words that begin anew where a small letter is followed by a capital."""
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}"


_GPT4O = rf"{_by_case(ending=_ENGLISH + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_KIMI = r"[\p{Han}]+|" + _by_case(r"&&[^\p{Han}]", _ENGLISH + "?") + rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"

_THREES_FROM_THE_END = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_MARKED_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_PUNCTUATION}|{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_PUNCTUATION}|{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SENTENCE = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
"""Letters with case of Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, Deseret and others."""
_DEEPSEEK_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _HAN_AND_KANA
)


@dataclass(frozen=True)
class Splitting:
    """One way of splitting text.

    patterns: regular expressions, each of which splits the parts of those before it into what it matches and
    what lies between. byte_patterns: the same, on what the first ones leave with a character for each byte.
    whole_tokens_first: a part that is itself a token is taken whole, whatever the merges. add_bos: whether a
    text begins with the bos token, where the file does not say. composed: whether text is first brought to
    Unicode's normal form C.
    """

    patterns: tuple[str, ...]
    byte_patterns: tuple[str, ...] = ()
    whole_tokens_first: bool = False
    add_bos: bool = False
    composed: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Ends with a character for each byte (Radford et al. 2019, GPT-2)."""
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        steps = [*map(_isolated, self.patterns), to_bytes, *map(_isolated, self.byte_patterns)]
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composed else None


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _named(names: str, splitting: Splitting) -> dict[str, Splitting]:
    return dict.fromkeys(names.split(), splitting)


_ASCII_PUNCTUATION = r"[\p{P}!-/:-@\[-`{-~]"
_DIGITS_APART = Splitting((r"\p{N}", _GPT2))
_SPLIT_BY_DEEPSEEK3 = Splitting((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3))
_SPLIT_BY_GPT4O = Splitting((_GPT4O,))

SPLITTINGS: dict[str, Splitting] = {
    **_named("default", Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    **_named(
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 jais "
        "trillion granite-docling",
        Splitting((_GPT2,)),
    ),
    **_named("olmo mpt", Splitting((_GPT2,), composed=True)),  # GPT-NeoX too
    **_named("smollm starcoder refact codeshell exaone minerva-7b mellum2", _DIGITS_APART),
    **_named("command-r", Splitting(_DIGITS_APART.patterns, composed=True)),
    **_named(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Splitting((_LLAMA3,), whole_tokens_first=True, add_bos=True),
    ),
    **_named("dbrx smaug-bpe glm4 chatglm-bpe", Splitting((_LLAMA3,))),
    **_named("jais-2", Splitting((_LLAMA3.replace(r"\s+(?!\S)|\s+", rf"{_HALVED}|\s{{1,2}}(?!\S)|\s"),))),
    **_named(
        "minicpm5",
        Splitting((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), whole_tokens_first=True),
    ),
    **_named("qwen2 megrez", Splitting((_QWEN2,), composed=True)),
    **_named("deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open grok-2", Splitting((_QWEN2,))),
    **_named("laguna", Splitting((r"[^\n]+|[\n]+", _QWEN2))),
    **_named("ufakzeka", Splitting((_QWEN2.removeprefix(f"{_ENGLISH}|"),))),
    **_named(
        "qwen35",
        Splitting(
            (
                rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            ),
            composed=True,
        ),
    ),
    **_named(
        "falcon",
        Splitting((f"{_ASCII_PUNCTUATION}+", _GPT2), byte_patterns=(r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    **_named(
        "deepseek-llm",
        Splitting(
            (
                r"[\r\n]",
                rf"\s?[{_CASED}]+",
                rf"\s?{_DEEPSEEK_SIGNS}",
                r"\s+$",
                _CJK_AND_HANGUL,
                r"\p{N}+",
            )
        ),
    ),
    **_named(
        "deepseek-coder",
        Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_HANGUL, r"\p{N}")),
    ),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _SPLIT_BY_DEEPSEEK3),
    **_named("spark2_5", Splitting((r"\p{N}{1,3}", _HAN_AND_KANA, _SPARK, r"\p{N}"))),
    **_named("afmoe", Splitting((_THREES_FROM_THE_END, _ASIAN, _DEEPSEEK3))),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _SPLIT_BY_GPT4O),
    **_named("tiny_aya cohere2moe", Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    **_named(
        "tekken",
        Splitting(
            (rf"{_by_case()}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",),
            whole_tokens_first=True,
            add_bos=True,
        ),
    ),
    **_named(
        "youtu",
        Splitting(
            (_YOUTU, rf"{_by_case(ending=_ENGLISH + '?')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"),
            whole_tokens_first=True,
        ),
    ),
    **_named("kimi-k2", Splitting((_KIMI,))),
    **_named(
        "exaone-moe",
        Splitting(
            (
                rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    **_named(
        "bailingmoe bailingmoe2 llada-moe",
        Splitting(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    **_named(
        "seed-coder",
        Splitting((rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
    **_named("superbpe", Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    **_named("bloom poro-chat gpt3-finnish", Splitting((_SENTENCE,))),
    **_named("viking", Splitting((_SENTENCE, r"\p{N}"))),
    **_named(
        "chameleon",
        Splitting(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                _ASCII_PUNCTUATION,
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
}


@cache
def known_patterns() -> frozenset[str]:
    """Every pattern above: none of them goes back and forth without end."""
    return frozenset(p for one in SPLITTINGS.values() for p in (*one.patterns, *one.byte_patterns))
