"""Text of ids one by one: what comes out joins to what the library decodes all of them to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from partita.checkpoints.text_stream import DecoderSteps, TextStream, decoder_of, steps_of

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SPACE = decoders.Replace("▁", " ")
DECODERS = {
    "none": None,
    "bytes": decoders.ByteLevel(),
    "llama": decoders.Sequence([SPACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "gemma": decoders.Sequence([SPACE, decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace(),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace-lines": decoders.Sequence([decoders.Metaspace(), decoders.Replace("\n ", "\n")]),
    "bytes-metaspace": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "low-lines": decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", "_")]),
    "lines": decoders.Sequence(
        [SPACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("\n ", "\n")]
    ),
    "bytes-lines": decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("ab", "yyy"), decoders.Replace("\n ", "\n")]
    ),
    "strip-three": decoders.Sequence([SPACE, decoders.Fuse(), decoders.Strip(" ", 3, 0)]),
    "bytes-strip": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    "wordpiece": decoders.WordPiece(),
    "ctc": decoders.CTC("<pad>", "|", True),
    "bpe": decoders.BPEDecoder("</w>"),
    "pattern": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("a+b"), "")]),
    "overlapping": decoders.Sequence([decoders.Fuse(), decoders.Replace("aa", "b")]),
}
BYTES = dict(zip(range(256), sorted(pre_tokenizers.ByteLevel.alphabet()), strict=True))
PIECES = ["▁", "a", "b", "▁a", "ab", "\n", "\n ", "▁▁", "##a", ".", "a</w>", "x", "", "|", "<pad>", "n't"]
FALLBACK = [f"<0x{byte:02X}>" for byte in (0xE2, 0x82, 0xAC, 0x41, 0xF0)] + ["<0xe2>"]
OF_BYTES = ["â", "Ĥ", "¬", "ð", "Ł", "âĤ", "Ĥ¬â", "Ċ", "Ġ"]  # E2 82 AC F0 9F, two and three of them, \n, " "
TOKENS = list(dict.fromkeys([*PIECES, *FALLBACK, *OF_BYTES, UNKNOWN]))
IDS = st.one_of(
    *[
        st.lists(st.sampled_from([TOKENS.index(token) for token in pool]), max_size=40)
        for pool in (TOKENS, PIECES, [*FALLBACK, "a", ""], [*OF_BYTES, "a", ""], ["▁", "a", "\n", "\n ", "b"])
    ]
)


def backend_with(decoder: decoders.Decoder | None) -> Tokenizer:
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    return backend


BACKENDS = {name: backend_with(decoder) for name, decoder in DECODERS.items()}


def stream_of(name: str, after: list[int] | None = None) -> TextStream:
    backend = BACKENDS[name]
    return TextStream(backend, steps_of(decoder_of(backend)), after=after or [])


def whole(name: str, ids: list[int]) -> str:
    return BACKENDS[name].decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", DECODERS)
@examples(20)
@given(ids=IDS)
def test_pieces_join_to_what_the_library_decodes(name: str, ids: list[int]):
    stream = stream_of(name)
    assert "".join([*map(stream.push, ids), stream.end()]) == whole(name, ids)


@pytest.mark.parametrize("name", DECODERS)
@examples(15)
@given(before=IDS, ids=IDS)
def test_ids_that_go_on_from_others_add_what_the_library_adds(name: str, before: list[int], ids: list[int]):
    text, all_text = whole(name, before), whole(name, before + ids)
    stream = stream_of(name, before)
    added = "".join([*map(stream.push, ids), stream.end()])
    begun = len(text) - len(text.rstrip(UNKNOWN))  # of which some may become a character
    if all_text.startswith(text.rstrip(UNKNOWN)):
        assert any(text[: len(text) - cut] + added == all_text for cut in range(begun + 1))


@given(st.lists(st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x41]), max_size=30))
def test_no_piece_ends_inside_a_character(raw: list[int]):
    """Each U+FFFD that is given out stays one, whatever bytes follow."""
    letters = {0xE2: "â", 0x82: "Ĥ", 0xAC: "¬", 0xF0: "ð", 0x9F: "Ł", 0x41: "a"}
    stream, shown = stream_of("bytes"), ""
    for count, byte in enumerate(raw, 1):
        shown += stream.push(TOKENS.index(letters[byte]))
        known = bytes(0x61 if byte == 0x41 else byte for byte in raw[:count])
        for more in (b"\x82", b"\x82\xac", b"\x9f\x82\x82", b"\x9f\x98\x80", b"a"):
            assert (known + more).decode(errors="replace").startswith(shown)


@pytest.mark.parametrize("name", ["bytes", "llama", "metaspace", "bytes-lines", "bytes-strip", "ctc"])
@pytest.mark.parametrize("tokens", [["â"], ["â", "Ĥ"], ["▁"], [""], ["a", ""], ["\n"]], ids=repr)
def test_a_token_is_decoded_with_few_others_however_long_the_text(name: str, tokens: list[str]):
    """Also where no character is ever whole, or no token has text."""
    backend, longest = BACKENDS[name], 0

    class Watched:
        """Decodes as the backend does, and notes how many ids at a time."""

        id_to_token = staticmethod(backend.id_to_token)

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return backend.decode(ids, skip_special_tokens=skip_special_tokens)

    stream = TextStream(Watched(), steps_of(decoder_of(backend)))  # pyright: ignore[reportArgumentType]
    ids = [TOKENS.index(token) for token in tokens] * 500
    assert "".join([*map(stream.push, ids), stream.end()]) == whole(name, ids)
    assert longest < 64


def test_bytes_in_a_row_come_once_another_token_does():
    """The library gives U+FFFD for each of a row that is not UTF-8 all together."""
    ids = [TOKENS.index(token) for token in ("<0xE2>", "<0x82>", "<0xAC>", "a")]
    stream = stream_of("gemma")
    assert [*map(stream.push, ids), stream.end()] == ["", "", "", "€a", ""]
    stream = stream_of("gemma")
    assert [*map(stream.push, [*ids[:3], ids[1], ids[3]])] == ["", "", "", "", UNKNOWN * 4 + "a"]


def test_hidden_tokens_add_no_text():
    a, b = TOKENS.index("a"), TOKENS.index("b")
    stream = TextStream(BACKENDS["bytes"], steps_of(decoder_of(BACKENDS["bytes"])), hidden={b})
    assert [*map(stream.push, [a, b, a])] == ["a", "", "a"]
    assert (stream.hidden(a), stream.hidden(b)) == ("", "b")


def test_what_no_rule_bounds_comes_at_the_end():
    ids = [TOKENS.index("a")] * 3
    for name in ("pattern", "overlapping"):
        assert steps_of(decoder_of(BACKENDS[name])).lag is None
        stream = stream_of(name)
        assert [*map(stream.push, ids), stream.end()] == ["", "", "", whole(name, ids)]
    assert steps_of({"type": "Unheard"}).lag is None
    assert steps_of({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "WordPiece"}]}).lag is None


def test_steps_that_look_at_nothing_but_bytes():
    assert steps_of(decoder_of(BACKENDS["bytes"])) == DecoderSteps(4, 0, bytes_end=True, runs=False)
