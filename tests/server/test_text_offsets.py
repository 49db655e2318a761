"""``text_offset`` says where a token begins in the text that is returned, whatever the tokenizer makes of a text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.detokenizer import unfinished_end
from headway.models.loading.tokenizer import FastTokenizer
from headway.server.answers.tokens import Offsets
from tests.engine.builders import ByteTokenizer, ScriptedExecutor, echo
from tests.engine.test_real_tokenizers import KINDS, LOSSY, load
from tests.server.running import Running, serving

TEXTS = [
    "hello wo",
    "hello hello  wo",
    " hello",
    "  hello",
    "wo",
    " ",
    "\u20ac hello\u20ac",
    "\U0001f600",
    "<s>hello</s> wo",
    "hello<s>",
    "h<s>\u20ac",
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Running]:
    with serving(ScriptedExecutor(echo), tokenizer=load(kind)) as running:  # type: ignore[arg-type]
        yield running


def pieces_of(choice: dict[str, Any]) -> list[str]:
    """The text in pieces, each from a token to the next."""
    places, text = choice["logprobs"]["text_offset"], choice["text"]
    assert places[0] == 0 and places == sorted(places) and places[-1] <= len(text)
    return [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]


def check(choice: dict[str, Any], ids: list[int], tokenizer: FastTokenizer, *, shows_special: bool) -> None:
    """Each token's piece is what it stands for; the first word may lack its space, special tokens all of it."""
    pieces = pieces_of(choice)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == choice["text"]
    for place, (piece, token) in enumerate(zip(pieces, ids, strict=True)):
        own = tokenizer.id_to_bytes(token)
        begins = place == 0 or ids[place - 1] in tokenizer.special_token_ids
        if token in tokenizer.special_token_ids:
            assert piece == (own.decode() if shows_special else "") or (shows_special and not piece)
        elif len(own) == 1 and own[0] >= 0x80:  # part of a character, which is the piece of its last token
            assert piece == "" or piece == "\ufffd" or piece.encode().endswith(own)
        else:
            assert piece.encode() == own or (begins and (" " + piece).encode() == own)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("more", [0, 3])
def test_the_offsets_of_an_echoed_text(server: Running, kind: str, text: str, more: int) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode(text)
    [choice] = server.complete(
        text, echo=True, logprobs=0, max_tokens=more, ignore_eos=True, return_token_ids=True
    ).json()["choices"]

    assert choice["text"].startswith(text) and choice["token_ids"][: len(ids)] == ids
    places = choice["logprobs"]["text_offset"]
    if more:
        assert places[len(ids)] == len(text)
    check(choice, choice["token_ids"], tokenizer, shows_special=True)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_the_offsets_of_echoed_ids(server: Running, kind: str, text: str, skip: bool) -> None:
    tokenizer = load(kind)
    ids = [tokenizer.bos_token_id or 0, *tokenizer.encode(text)]
    [choice] = server.complete(
        ids, echo=True, logprobs=0, max_tokens=3, ignore_eos=True, skip_special_tokens=skip, return_token_ids=True
    ).json()["choices"]

    shown = tokenizer.decode(ids, skip_special_tokens=skip)
    assert choice["text"].startswith(shown)
    assert choice["logprobs"]["text_offset"][len(ids)] == len(shown)
    check(choice, choice["token_ids"], tokenizer, shows_special=not skip)


@pytest.mark.parametrize("text", TEXTS)
def test_the_offsets_of_an_output_are_the_same_in_a_stream(server: Running, kind: str, text: str) -> None:
    asked = {"prompt": text, "logprobs": 0, "max_tokens": 9, "ignore_eos": True}
    [choice] = server.post("/v1/completions", asked).json()["choices"]
    chunks = [event["choices"][0]["logprobs"] for event in server.stream("/v1/completions", asked)]

    places = choice["logprobs"]["text_offset"]
    assert places == [place for chunk in chunks if chunk for place in chunk["text_offset"]]
    pieces = pieces_of(choice)
    assert "".join(pieces) == choice["text"]


CHANGED = [
    "e\u0301 hello",
    "Hello, World. hello",
    "  hello\tWO ",
    "<s>A\u030a hello</s>wo",
    "hello \U0001f600e\u0301wo",
    "\u212b",
]


@pytest.mark.parametrize("kind", [*KINDS, *LOSSY])
def test_the_places_of_a_text_that_the_tokenizer_changes(kind: str) -> None:
    tokenizer = load(kind)
    with serving(ScriptedExecutor(echo), tokenizer=tokenizer) as server:  # type: ignore[arg-type]
        choices = server.complete(CHANGED, echo=True, logprobs=0, max_tokens=0).json()["choices"]

    for text, choice in zip(CHANGED, choices, strict=True):
        places = choice["logprobs"]["text_offset"]
        assert choice["text"] == text
        assert places == sorted(places) and places[0] == 0 and places[-1] <= len(text)
        pieces = [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]
        for token, piece in zip(tokenizer.encode(text), pieces, strict=True):
            alone = tokenizer.id_to_bytes(token).decode(errors="replace").strip()
            if alone in ("hello", "wo", "world", "<s>", "</s>"):
                assert piece.strip().lower() == alone, (text, pieces)


@pytest.mark.parametrize("kind", LOSSY)
def test_the_places_of_ids_of_a_lossy_tokenizer(kind: str) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode("hello world. hello")
    with serving(ScriptedExecutor(echo), tokenizer=tokenizer) as server:  # type: ignore[arg-type]
        [choice] = server.complete(ids, echo=True, logprobs=0, max_tokens=0).json()["choices"]

    assert choice["text"] == tokenizer.decode(ids)
    pieces = pieces_of(choice)
    assert [piece.encode() for piece in pieces[1:]] == [tokenizer.id_to_bytes(token) for token in ids[1:]]


@given(data=st.lists(st.binary(max_size=3), min_size=1, max_size=8))
@example(data=[b"\xed", b"\xa0"])
def test_tokens_of_any_bytes_begin_where_their_text_does(data: list[bytes]) -> None:
    offsets = Offsets(ByteTokenizer(data).id_to_bytes)

    places = [offsets.next(258 + place) for place in range(len(data))]

    for place, begin in enumerate(places):
        before, new = b"".join(data[:place]), data[place]
        num_before = len(before.decode(errors="replace"))
        within = bool(unfinished_end(lambda value: bytes([value]), list(before)))
        goes_on = within and len((before + new[:1]).decode(errors="replace")) == num_before
        assert begin == num_before - goes_on
