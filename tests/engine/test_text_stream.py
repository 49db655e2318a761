"""Text, token ids and log probabilities are let go together and cut at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
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


class SpecialTokenizer(ByteTokenizer):
    """Its pieces that begin with ``<`` are special tokens."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces)
        special = {258 + place for place, piece in enumerate(pieces) if piece.startswith(b"<")}
        self.special_token_ids = ByteTokenizer.special_token_ids | special


def with_specials(text: str, specials: Sequence[tuple[int, str]]) -> str:
    """A text with its special tokens put back."""
    for place, special in reversed(specials):
        assert 0 <= place <= len(text)
        text = text[:place] + special + text[place:]
    return text


SOME_PIECES = [b"<call>", b"<end>", b"a", b"b", b"ab", "\u20ac".encode()[:1], "\u20ac".encode()[1:], b"\xff"]


def run_specials(pieces: Sequence[bytes], *, ended: bool = False, **sampling: Any) -> TextStream:
    """Push all pieces as one token each; ``ended`` if the last one ended the output."""
    tokenizer = SpecialTokenizer(pieces)
    settings = SamplingParams(logprobs=0, **sampling)
    stream = TextStream(settings, TokenBytes(tokenizer, skip_special_tokens=settings.skip_special_tokens))
    for place in range(len(pieces)):
        stream.push(258 + place, measured(258 + place), has_text=not ended or place < len(pieces) - 1)
    stream.finish()
    return stream


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"),
    [
        ("<end>", "ab\n", 1),
        ("\n<end>", "ab", 1),
        ("<end>c", "ab\n", 1),
        ("b\n<end>c", "a", 1),
        ("<end><call>", None, 4),
    ],
)
def test_a_stop_with_the_text_of_a_special_token(skip: bool, stop: str, text: str | None, num_tokens: int) -> None:
    stream = run_specials([b"ab\n", b"<end>", b"cd", b"<call>"], stop=(stop,), skip_special_tokens=skip)

    if text is None:
        text = "ab\ncd" if skip else "ab\n<end>cd<call>"
        assert stream.stop is None
    else:
        assert stream.stop == stop
    assert (stream.text, len(stream.token_ids), len(stream.logprobs or ())) == (text, num_tokens, num_tokens)


@pytest.mark.parametrize("skip", [True, False])
def test_a_stop_may_end_in_the_token_that_ended_the_output(skip: bool) -> None:
    stream = run_specials([b"ab", b"\n", b"<end>"], ended=True, stop=("\n<end>",), skip_special_tokens=skip)

    assert (stream.text, stream.token_ids, stream.stop) == ("ab", (258,), "\n<end>")


@pytest.mark.parametrize("stop", ["<", "end", ">", "a<", "\n"])
def test_a_part_of_the_token_that_ended_the_output_is_no_stop(stop: str) -> None:
    stream = run_specials([b"a", b"<end>"], ended=True, stop=(stop,))

    assert (stream.text, stream.token_ids, stream.stop, stream.specials) == ("a", (258, 259), None, ())


def test_a_stop_that_is_wanted_comes_without_what_is_hidden() -> None:
    pieces, stop = [b"a", b"b", b"<end>", b"c"], ("b<end>",)

    hidden = run_specials(pieces, stop=stop, include_stop_str_in_output=True)
    shown = run_specials(pieces, stop=stop, include_stop_str_in_output=True, skip_special_tokens=False)

    assert (hidden.text, hidden.token_ids, hidden.specials) == ("ab", (258, 259, 260), ((2, "<end>"),))
    assert (shown.text, shown.token_ids) == ("ab<end>", (258, 259, 260))


def test_special_tokens_within_the_first_min_tokens_do_not_stop() -> None:
    stream = run_specials([b"a", b"<end>", b"b", b"<end>", b"c"], stop=("<end>",), min_tokens=3, max_tokens=9)

    assert (stream.text, stream.token_ids) == ("ab", (258, 259, 260))


@given(
    st.lists(st.sampled_from(range(258, 258 + len(SOME_PIECES))), max_size=12),
    st.lists(st.sampled_from(["ab", "ba", "aab", "b"]), max_size=2),
    st.integers(1, 5),
    st.booleans(),
)
@example([263, 258, 260], ["ab"], 1, False)
def test_special_tokens_are_told_with_their_place(
    tokens: list[int], stops: list[str], every: int, keeps_stop: bool
) -> None:
    tokenizer = SpecialTokenizer(SOME_PIECES)
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=keeps_stop)
    stream = TextStream(sampling, TokenBytes(tokenizer, skip_special_tokens=True))
    pieces = []
    for place, token in enumerate(tokens):
        stream.push(token)
        if place % every == 0:
            pieces.append(stream.take())
    stream.finish()
    pieces.append(stream.take())

    whole = with_specials(stream.text, stream.specials)
    assert "".join(with_specials(piece.text, piece.specials) for piece in pieces) == whole
    assert [text for _, text in stream.specials] == [
        tokenizer.id_to_bytes(token).decode() for token in stream.token_ids if token in tokenizer.special_token_ids
    ]
    if not stops and max(tokens, default=0) < 258 + len(SOME_PIECES) - 3:  # none that is half a character
        assert whole == tokenizer.decode(tokens, skip_special_tokens=False)


def test_an_end_that_leaves_no_text_is_no_special_token_of_it() -> None:
    stream = TextStream(SamplingParams(), TokenBytes(SpecialTokenizer([b"<call>"]), skip_special_tokens=True))
    stream.push(258)
    stream.push(EOS, has_text=False)
    stream.finish()

    assert stream.specials == ((0, "<call>"),)


def test_special_tokens_that_are_shown_are_not_told_apart() -> None:
    stream = TextStream(SamplingParams(), TokenBytes(SpecialTokenizer([b"<call>"]), skip_special_tokens=False))
    stream.push(258)
    stream.finish()

    assert (stream.text, stream.specials) == ("<call>", ())
