"""Where texts end: stop texts however they are cut into pieces, tokens that end a text, length."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.stopping import Ending, Piece, StopTexts
from partita.specs.sampling import Sampling


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


TURN = 256


class Letters:
    """Tokens 0 to 255 are bytes, whose text comes once a character is whole; the next is hidden."""

    def __init__(self) -> None:
        self.bytes = b""

    def push(self, token: int) -> str:
        if token == TURN:
            return ""
        self.bytes += bytes([token])
        try:
            text, self.bytes = self.bytes.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text

    def hidden(self, token: int) -> str:
        return "<turn>" if token == TURN else ""

    def end(self) -> str:
        return self.bytes.decode(errors="replace")


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop text that ends first; of those the one that begins first."""
    for end in range(len(text) + 1):
        if starts := [end - len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: min(starts)], True
    return text, False


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3), st.data())
def test_texts_are_cut_before_a_stop_text_wherever_pieces_end(
    text: str, stops: list[str], data: st.DataObject
):
    filter, given_out, wanted = StopTexts(stops), "", cut(text, stops)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    for begin, end in zip([0, *places], [*places, len(text)], strict=True):
        given_out += filter.push(text[begin:end])
        assert wanted[0].startswith(given_out)
        if not filter.found:  # nothing is held back longer than it must be
            held = text[len(given_out) : end]
            assert not held or any(stop.startswith(held) for stop in stops)
    given_out += filter.end()
    assert (given_out, filter.found) == wanted
    if filter.found:
        assert filter.push("more") == filter.end() == ""


def test_a_long_stop_text_takes_no_longer_than_it_is_long():
    stop = "a" * 50_000 + "b"
    filter = StopTexts([stop])
    assert sum(len(filter.push("a")) for _ in range(60_000)) == 10_000
    assert filter.push("b") == ""
    assert filter.found


def ending(**settings) -> Ending:
    return Ending(Sampling(**settings), Letters(), frozenset({0}))


def push(ends: Ending, text: bytes) -> list[Piece]:
    """Pushes tokens until the text ends; how many were left over would be a mistake of the test."""
    found = []
    for number, byte in enumerate(text):
        found.append(ends.push(byte))
        if ends.finish:
            assert number == len(text) - 1
    return found


def test_length():
    ends = ending(max_tokens=3)
    pieces = push(ends, b"abc")
    assert [(piece.text, piece.finish) for piece in pieces] == [("a", None), ("b", None), ("c", "length")]
    assert ends.tokens == [97, 98, 99]
    with pytest.raises(ValueError, match="has ended"):
        ends.push(1)


def test_text_held_back_comes_at_the_end_where_no_stop_text_follows():
    ends = ending(max_tokens=4, stop=["b\n\n"])
    assert [piece.text for piece in push(ends, b"ab\nc")] == ["a", "", "", "b\nc"]
    assert ends.finish == "length"
    ends = ending(max_tokens=3, stop=["b\n\n"])
    assert [piece.text for piece in push(ends, b"ab\n")] == ["a", "", "b\n"]
    ends = ending(stop=["b\n\n"])
    assert push(ends, b"ab\n\0")[-1] == Piece(None, "b\n", "stop")


def test_a_stop_text_ends_the_text_and_its_tokens_are_kept():
    ends = ending(stop="\n\n")
    pieces = push(ends, b"a\n\n")
    assert text_of(pieces) == "a"
    assert pieces[-1] == Piece(10, "", "stop")
    assert ends.tokens == [97, 10, 10]


def test_a_stop_text_at_the_last_token_is_a_stop():
    ends = ending(max_tokens=2, stop="b")
    assert push(ends, b"ab")[-1].finish == "stop"


def test_stop_texts_of_characters_in_several_tokens():
    ends = ending(stop=["é!"])
    assert text_of(push(ends, "xéé!".encode())) == "xé"
    assert ends.finish == "stop"


def test_a_text_that_stops_inside_a_character():
    ends = ending(max_tokens=2)
    assert text_of(push(ends, "aé".encode()[:2])) == "a\ufffd"
    ends = ending(max_tokens=2, stop="\ufffd")
    assert text_of(push(ends, "aé".encode()[:2])) == "a"
    assert ends.finish == "stop"


@pytest.mark.parametrize(
    ("settings", "tokens", "finish"),
    [
        ({}, [97, 0], "stop"),
        ({"ignore_eos": True, "max_tokens": 3}, [97, 0, 98], "length"),
        ({"stop_token_ids": [98]}, [97, 98], "stop"),
        ({"stop_token_ids": [98]}, [97, 0], "stop"),
        ({"stop_token_ids": [0], "ignore_eos": True}, [97, 0], "stop"),
    ],
    ids=str,
)
def test_tokens_that_end_a_text(settings: dict, tokens: list[int], finish: str):
    ends = ending(**settings)
    pieces = [ends.push(token) for token in tokens]
    assert pieces[-1].finish == ends.finish == finish
    if finish == "stop":
        assert pieces[-1].token is None
        assert ends.tokens == tokens[:-1]


@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("<turn>", [97, TURN], "a"),
        ("<turn>\nb", [97, TURN, 10, 98], "a"),
        ("a<turn>", [98, 97, TURN], "b"),
        ("<turn><turn>", [97, TURN, TURN], "a"),
        ("urn>a", [98, TURN, 97], "b"),
        ("<turn>", [98, 0xC3, TURN], "b\ufffd"),  # half a character is held back
    ],
)
def test_a_stop_text_that_is_or_holds_a_hidden_token(stop: str, tokens: list[int], text: str):
    ends = ending(stop=stop)
    assert text_of([ends.push(token) for token in tokens]) == text
    assert (ends.finish, ends.tokens) == ("stop", tokens)


E_ACUTE = list("é".encode())


@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("<turn>", [97, E_ACUTE[0], TURN], "a\ufffd"),
        ("a\ufffd<turn>", [98, 97, E_ACUTE[0], TURN], "b"),
        ("é<turn>b", [97, E_ACUTE[0], TURN, E_ACUTE[1], 98], "a"),
        ("<turn><turn>b", [97, E_ACUTE[0], TURN, TURN, E_ACUTE[1], 98], "aé"),
    ],
)
def test_a_hidden_token_stands_behind_text_that_is_still_held_back(stop: str, tokens: list[int], text: str):
    ends = ending(stop=stop)
    pieces = [ends.push(token) for token in tokens]
    assert (text_of(pieces), ends.finish) == (text, "stop")


def test_a_hidden_token_that_does_not_stop_the_text_leaves_characters_whole():
    ends = ending(stop="<turn>x", max_tokens=4)
    pieces = [ends.push(token) for token in (97, E_ACUTE[0], TURN, E_ACUTE[1])]
    assert (text_of(pieces), ends.finish) == ("aé", "length")


def test_hidden_tokens_are_not_shown_where_text_is_held_back_for_them():
    ends = ending(stop="<turn>x", max_tokens=4)
    pieces = [ends.push(token) for token in (97, TURN, 98, TURN)]
    assert [piece.text for piece in pieces] == ["a", "", "b", ""]
    assert ends.finish == "length"


def test_without_a_tokenizer_ids_are_the_text():
    ends = Ending(Sampling(max_tokens=2))
    assert text_of([ends.push(5), ends.push(17)]) == "5 17 "
