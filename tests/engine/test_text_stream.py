"""Text, token ids and log probabilities are let go together and cut at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import SamplingParams
from headway.engine.detokenizer import TokenBytes
from headway.engine.text_stream import Piece, TextStream
from tests.engine.builders import EOS, ByteTokenizer, measured
from tests.engine.test_stop_strings import reference


def make_stream(pieces: Sequence[bytes] = (), **sampling: Any) -> TextStream:
    """A stream whose tokens from 258 on are these pieces."""
    tokenizer = ByteTokenizer(pieces)
    return TextStream(SamplingParams(logprobs=0, **sampling), TokenBytes(tokenizer, skip_special_tokens=True))


def run(pieces: Sequence[bytes], **sampling: Any) -> tuple[list[Piece], TextStream]:
    """Push all pieces as one token each, and finish."""
    stream = make_stream(pieces, **sampling)
    taken = []
    for token in range(258, 258 + len(pieces)):
        stream.push(token, measured(token))
        taken.append(stream.take())
    stream.finish()
    taken.append(stream.take())
    return taken, stream


def test_each_token_comes_with_its_text() -> None:
    taken, _ = run([b"ab", b"c"])

    assert [(piece.text, piece.token_ids) for piece in taken] == [("ab", (258,)), ("c", (259,)), ("", ())]


def test_tokens_of_a_character_come_together_with_it() -> None:
    first, second, third = ("€".encode()[place : place + 1] for place in range(3))

    taken, _ = run([b"a" + first, second, third, b"b"])

    assert [(piece.text, piece.token_ids) for piece in taken] == [
        ("a", ()),
        ("", ()),
        ("€", (258, 259, 260)),
        ("b", (261,)),
        ("", ()),
    ]


def test_held_back_text_holds_back_its_tokens() -> None:
    taken, _ = run([b"abD", b"EF", b"X"], stop=("DEFG",))

    assert [(piece.text, piece.token_ids) for piece in taken] == [
        ("ab", ()),
        ("", ()),
        ("DEFX", (258, 259, 260)),
        ("", ()),
    ]


def test_tokens_behind_the_cut_are_not_part_of_the_output() -> None:
    taken, stream = run([b"ab", b"cD", b"EF", b"G"], stop=("DEFG",))

    assert (stream.text, stream.token_ids, stream.stop) == ("abc", (258, 259), "DEFG")
    assert stream.logprobs == (measured(258), measured(259))
    assert "".join(piece.text for piece in taken) == "abc"
    assert [token for piece in taken for token in piece.token_ids] == [258, 259]


def test_a_stop_at_the_very_beginning_leaves_nothing() -> None:
    _, stream = run([b"DE", b"F"], stop=("DEF",))

    assert (stream.text, stream.token_ids, stream.logprobs) == ("", (), ())


def test_the_stop_string_is_part_of_the_output_if_wanted() -> None:
    _, stream = run([b"ab", b"cD", b"EFx"], stop=("DEF",), include_stop_str_in_output=True)

    assert (stream.text, stream.token_ids, stream.stop) == ("abcDEF", (258, 259, 260), "DEF")


def test_nothing_is_taken_in_after_a_stop() -> None:
    _, stream = run([b"aX", b"b", b"c"], stop=("X",))

    assert (stream.text, stream.token_ids) == ("a", (258,))


def test_stop_strings_within_the_first_min_tokens_do_not_count() -> None:
    _, stream = run([b"aX", b"bX", b"cX"], stop=("X",), min_tokens=3, max_tokens=9)

    assert (stream.text, stream.token_ids) == ("aXbXc", (258, 259, 260))


def test_a_token_that_ended_the_output_leaves_no_text() -> None:
    stream = make_stream([b"stop"])
    stream.push(ord("a"))
    stream.push(258, has_text=False)
    stream.finish()

    assert (stream.text, stream.token_ids) == ("a", (ord("a"), 258))


def test_end_of_text_lets_go_of_half_a_character_and_of_held_text() -> None:
    stream = make_stream(stop=("bc",))
    for token in b"ab\xe2":
        stream.push(token)
    stream.push(EOS, has_text=False)
    stream.finish()

    assert (stream.text, stream.token_ids) == ("ab\ufffd", (*b"ab\xe2", EOS))


def test_an_aborted_output_does_not_stop_by_string() -> None:
    stream = make_stream([b"abc"], stop=("bc", "abcd"))
    stream.push(258)
    stream.finish(look_for_stop=False)

    assert (stream.text, stream.stop) == ("abc", None)


def test_without_token_bytes_there_is_no_text() -> None:
    stream = TextStream(SamplingParams(stop=("a",)), None)
    stream.push(ord("a"))
    stream.finish()

    assert (stream.text, stream.token_ids, stream.stop) == ("", (ord("a"),), None)


@given(
    pieces=st.lists(st.text("abé", max_size=3).map(str.encode), min_size=1, max_size=10),
    cuts=st.lists(st.integers(1, 3), max_size=10),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_streamed_output_is_the_reference_cut(
    pieces: list[bytes], cuts: list[int], stops: list[str], include: bool
) -> None:
    data = b"".join(pieces)
    tokens = []
    for size in [*cuts, len(data)]:
        tokens, data = [*tokens, data[:size]], data[size:]
    text, stop = reference(b"".join(tokens).decode(), stops)

    taken, stream = run(tokens, stop=tuple(stops), include_stop_str_in_output=include)

    expected = text + stop if include and stop is not None else text
    assert "".join(piece.text for piece in taken) == stream.text == expected
    assert stream.stop == stop
    assert tuple(token for piece in taken for token in piece.token_ids) == stream.token_ids
    covered = b"".join(tokens[: len(stream.token_ids)])
    without_last = b"".join(tokens[: max(0, len(stream.token_ids) - 1)])
    assert covered.startswith(expected.encode())
    if stop is None:
        assert len(stream.token_ids) == len(tokens)
    else:
        assert len(without_last) <= len(expected.encode()) or not tokens[len(stream.token_ids) - 1]


@pytest.mark.parametrize("stop", ["é", "aé"])
def test_a_stop_that_ends_in_a_split_character(stop: str) -> None:
    _, stream = run([b"xa\xc3", b"\xa9y"], stop=(stop,))

    assert stream.text == "xa".removesuffix(stop[:-1] or "\0")
    assert stream.token_ids == (258,) if stream.text == "x" else (258, 259)
