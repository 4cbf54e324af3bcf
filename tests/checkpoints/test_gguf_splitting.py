"""Ways of splitting text by name.

When it was written, each gave the ids of llama.cpp itself (release 11549) for 304 texts of many scripts in
a vocabulary whose merges cross every border, but where llama.cpp has another form of the published pattern
(case in letters, digits by threes) or leaves out a step (normal form C, Falcon's digits): those parts below
are by hand.
"""

from __future__ import annotations

import pytest

from partita.checkpoints.gguf_splitting import SPLITTINGS, known_patterns

TEXT = "it's HelloWorld 12345 é你好!\n\n  x"
É, HAN = "Ã©", "ä½łå¥½"  # as characters for bytes

PARTS = {
    "default": f"it|'|s|ĠHelloWorld|Ġ|123|45|Ġ{É}{HAN}|!|ĊĊĠ|Ġx",
    "gpt-2 phi-2 exaone4 jais trillion olmo mpt": f"it|'s|ĠHelloWorld|Ġ12345|Ġ{É}{HAN}|!|ĊĊĠ|Ġx",
    "smollm starcoder refact command-r codeshell": f"it|'s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!|ĊĊĠ|Ġx",
    "llama-bpe falcon3 dbrx glm4 minicpm5 jais-2": f"it|'s|ĠHelloWorld|Ġ|123|45|Ġ{É}{HAN}|!ĊĊ|Ġ|Ġx",
    "qwen2 qwen35 stablelm2 megrez grok-2 ufakzeka bailingmoe": (
        f"it|'s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!ĊĊ|Ġ|Ġx"
    ),
    "laguna seed-coder": f"it|'s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!|ĊĊ|Ġ|Ġx",
    "deepseek-llm": f"it|'|s|ĠHelloWorld|Ġ|12345|Ġ{É}|{HAN}|!|Ċ|Ċ|Ġ|Ġx",
    "deepseek-coder": f"it|'|s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}|{HAN}|!|Ċ|Ċ|Ġ|Ġx",
    "deepseek-v3 hunyuan-dense": f"it|'s|ĠHelloWorld|Ġ|123|45|Ġ{É}|{HAN}|!ĊĊ|Ġ|Ġx",
    "spark2_5": f"it|'s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}|{HAN}|!|Ċ|Ċ|Ġ|Ġx",
    "afmoe": f"it|'s|ĠHelloWorld|Ġ|12|345|Ġ{É}|{HAN}|!ĊĊ|Ġ|Ġx",
    "exaone-moe": f"it|'s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!Ċ|Ċ|Ġ|Ġx",
    "superbpe": f"it'sĠHelloWorldĠ|12|345|Ġ{É}{HAN}!ĊĊĠĠx",
    "bloom poro-chat gpt3-finnish": f"it's|ĠHelloWorld|Ġ12345|Ġ{É}{HAN}|!ĊĊĠ|Ġx",
    "viking": f"it's|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!ĊĊĠ|Ġx",
    "chameleon": f"it|'|s|ĠHelloWorld|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!|Ċ|Ċ|ĠĠ|x",
    # by hand
    "falcon": f"it|'|s|ĠHelloWorld|Ġ|123|45|Ġ{É}ä|½|łå¥|½|!|ĊĊĠ|Ġx",  # ½ is a number to its last two steps
    "gpt-4o llama4 minimax-m2": f"it's|ĠHello|World|Ġ|123|45|Ġ{É}{HAN}|!ĊĊ|Ġ|Ġx",
    "tiny_aya cohere2moe": f"it's|ĠHello|World|Ġ|12|345|Ġ{É}{HAN}|!ĊĊ|Ġ|Ġx",
    "tekken": f"it|'s|ĠHello|World|Ġ|1|2|3|4|5|Ġ{É}{HAN}|!ĊĊ|Ġ|Ġx",
    "youtu": f"it's|ĠHello|World|Ġ|1|2|3|4|5|Ġ{É}|{HAN}|!ĊĊ|Ġ|Ġx",
    "kimi-k2": f"it's|ĠHello|World|Ġ|123|45|Ġ{É}|{HAN}|!ĊĊ|Ġ|Ġx",
}
CASES = [(name, parts) for names, parts in PARTS.items() for name in names.split()]


def parts_of(name: str, text: str) -> str:
    return "|".join(part for part, _ in SPLITTINGS[name].pre_tokenizer().pre_tokenize_str(text))


@pytest.mark.parametrize(("name", "parts"), CASES)
def test_a_text_is_split_as_its_name_has_it(name: str, parts: str):
    assert parts_of(name, TEXT) == parts


def test_every_name_splits_as_one_that_is_tested():
    tested = [SPLITTINGS[name].patterns for name, _ in CASES]
    assert all(splitting.patterns in tested for splitting in SPLITTINGS.values())


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("llama-bpe", "WE'LL", "WE|'LL"),
        ("gpt-2", "WE'LL", "WE|'|LL"),
        ("ufakzeka", "Ankara'da", "Ankara|'da"),
        ("qwen2", "Ankara'da", "Ankara|'d|a"),
        ("gpt-4o", "foo/\nbar", "foo|/Ċ|bar"),
        ("gpt-4o", "XMLParser getURL", "XMLParser|Ġget|URL"),
        ("tekken", "it'S 2nd", "it|'S|Ġ|2|nd"),
        ("qwen35", "e\u0301x", "eÌģx"),
        ("qwen2", "e\u0301x", "e|Ìģx"),
        ("afmoe", "1234567", "1|234|567"),
        ("superbpe", "1234567", "1|234|567"),
        ("jais-2", " " * 7 + "x", "ĠĠĠĠ|ĠĠ|Ġx"),
        ("llama-bpe", " " * 7 + "x", "ĠĠĠĠĠĠ|Ġx"),
        ("exaone-moe", "a b c 1", "aĠbĠc|Ġ|1"),
        ("chameleon", "IMGIMGABZx", "IMGIMGABZ|x"),
        ("bloom", "a,b;c", "a|,|b;c"),
        ("deepseek-llm", "a_b 1 x", "a|_|b|Ġ|1|Ġx"),
        ("kimi-k2", "好x", "å¥½|x"),
        ("youtu", "가好", "ê°Ģ|å¥½"),
        ("spark2_5", "a!\n", "a|!|Ċ"),
    ],
)
def test_what_tells_one_from_another(name: str, text: str, parts: str):
    assert parts_of(name, text) == parts


def test_whole_tokens_bos_and_normal_form():
    def named(**fields: bool) -> set[str]:
        return {n for n, s in SPLITTINGS.items() if all(getattr(s, f) == v for f, v in fields.items())}

    llama3 = named(whole_tokens_first=True, add_bos=True) - {"tekken"}
    assert {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"} < llama3
    assert named(whole_tokens_first=True) == llama3 | {"tekken", "minicpm5", "youtu"}
    assert named(add_bos=True) == llama3 | {"tekken", "chameleon"}
    assert named(composed=True) == {"qwen2", "megrez", "qwen35", "olmo", "mpt", "command-r"}


def test_the_letters_with_case_of_deepseek_are_letters_with_case():
    """They are spelled out in its pattern; those that Unicode has added since are not among them."""
    import unicodedata

    letters = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) in ("Lu", "Ll", "Lt")]
    split = {c for c in letters[::5] if parts_of("deepseek-llm", f"{c}一").count("|") == 1}
    assert len(split) > 400
    others = [
        chr(c) for c in range(0x300, 0x3000) if unicodedata.category(chr(c)) in ("Mn", "Nd", "Po", "Lo")
    ]
    assert all(parts_of("deepseek-llm", f"a{c}a").count("|") > 0 for c in others[::7])


def test_the_patterns_are_known():
    assert len(known_patterns()) > 30
    assert r"[0-9][0-9][0-9]" in known_patterns()
