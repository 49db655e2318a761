"""Text comes out whole characters at a time and is the same as decoding everything at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.detokenizer import Detokenizer, TokenBytes
from tests.engine.builders import BOS, EOS, ByteTokenizer

BEGUN = [b"\xc3", b"\xe2", b"\xe2\x82", b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xef", b"\xef\xbf", b"\xed"]
"""Characters that are not complete."""


def pieces_of(
    tokens: list[int], tokenizer: ByteTokenizer, prompt: list[int] | None = None, *, skip: bool = True
) -> list[str]:
    """What each token gave, and in the end what the flush gave."""
    detokenizer = Detokenizer(TokenBytes(tokenizer, skip_special_tokens=skip), prompt or [])
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` in pieces, cut at these places."""
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_comes_with_its_last_byte(character: str) -> None:
    tokens = list(character.encode())

    pieces = pieces_of(tokens, ByteTokenizer())

    assert pieces == [""] * (len(tokens) - 1) + [character, ""]


def test_half_a_character_in_the_end_is_one_replacement() -> None:
    assert pieces_of(list("a€".encode())[:-1], ByteTokenizer()) == ["a", "", "", "\ufffd"]


def test_bytes_that_are_no_character_come_as_soon_as_that_is_certain() -> None:
    assert pieces_of([0x80, 0xE2, ord("x")], ByteTokenizer()) == ["\ufffd", "", "\ufffdx", ""]


def test_a_token_may_end_within_a_character() -> None:
    tokenizer = ByteTokenizer([b" caf\xc3", b"\xa9 au"])

    assert pieces_of([258, 259], tokenizer) == [" caf", "é au", ""]


def test_special_tokens_leave_text_only_if_wanted() -> None:
    tokens = [ord("a"), BOS, ord("b"), EOS]

    assert "".join(pieces_of(tokens, ByteTokenizer())) == "ab"
    assert "".join(pieces_of(tokens, ByteTokenizer(), skip=False)) == "a<s>b</s>"


def test_a_special_token_within_a_character_does_not_break_it() -> None:
    first, second = "é".encode()

    assert "".join(pieces_of([first, BOS, second], ByteTokenizer())) == "é"


def test_unknown_ids_have_no_text() -> None:
    assert pieces_of([ord("a"), 299, ord("b")], ByteTokenizer()) == ["a", "", "b", ""]


def test_the_output_completes_a_character_that_the_prompt_began() -> None:
    *prompt, last = "x€".encode()

    assert pieces_of([last, ord("!")], ByteTokenizer(), list(prompt)) == ["€", "!", ""]


def test_a_whole_prompt_leaves_nothing_behind() -> None:
    assert pieces_of([ord("!")], ByteTokenizer(), list("x€".encode())) == ["!", ""]


def test_pending_tokens_are_those_of_the_unfinished_character() -> None:
    tokenizer = ByteTokenizer([b"ab\xe2"])
    detokenizer = Detokenizer(TokenBytes(tokenizer, skip_special_tokens=True))
    counts = []
    for token in (ord("a"), 258, 0x82, BOS, 0xAC, 0xE2, 0xE2):
        detokenizer.push(token)
        counts.append(detokenizer.num_pending)

    assert counts == [0, 1, 2, 3, 0, 1, 1]


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 200), max_size=30))
def test_any_split_of_any_text_streams_to_that_text(text: str, cuts: list[int]) -> None:
    tokenizer = ByteTokenizer(cut(text.encode(), cuts))
    tokens = list(range(258, tokenizer.vocab_size))

    pieces = pieces_of(tokens, tokenizer)

    assert "".join(pieces) == text
    assert pieces[-1] == ""


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 200), max_size=30), end=st.integers(0, 40))
def test_any_bytes_stream_to_their_decoding_and_are_never_taken_back(data: bytes, cuts: list[int], end: int) -> None:
    tokenizer = ByteTokenizer(cut(data[:end], cuts))
    tokens = list(range(258, tokenizer.vocab_size))

    pieces = pieces_of(tokens, tokenizer)

    assert "".join(pieces) == tokenizer.decode(tokens)
    for count in range(len(tokens)):
        whole = tokenizer.decode(tokens[:count])
        assert whole.rstrip("\ufffd").startswith("".join(pieces[:count]).rstrip("\ufffd"))


@given(data=st.binary(max_size=12), begun=st.sampled_from(BEGUN), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_the_output_is_what_it_adds_to_the_text_of_the_prompt(data: bytes, begun: bytes, cuts: list[int]) -> None:
    tokenizer = ByteTokenizer(cut(data, cuts))
    tokens = list(range(258, tokenizer.vocab_size))
    prompt = list(b"x" + begun)

    text = "".join(pieces_of(tokens, tokenizer, prompt))

    everything = tokenizer.decode([*prompt, *tokens])
    before = tokenizer.decode(prompt)
    completes = not everything.startswith(before) or (begun + data).startswith("\ufffd".encode())
    assert text == everything[len(before) - completes :]


@pytest.mark.parametrize("begun", BEGUN, ids=str)
def test_a_character_of_the_prompt_alone_is_no_output(begun: bytes) -> None:
    tokenizer = ByteTokenizer()

    assert "".join(pieces_of([], tokenizer, list(begun))) == ""
    assert "".join(pieces_of([BOS, ord("A")], tokenizer, [*begun, BOS, BOS, BOS, BOS, BOS])) == "A"


@pytest.mark.parametrize("half", [b"\xed\xa0", b"\xed\xbf", b"x\xed\xa0\x80"])
def test_half_a_surrogate_is_no_character_to_wait_for(half: bytes) -> None:
    tokenizer = ByteTokenizer([half])

    assert pieces_of([258, ord("A")], tokenizer) == [half.decode(errors="replace"), "A", ""]
    assert pieces_of([ord("A")], tokenizer, [258]) == ["A", ""]
