"""Prompts of token ids that end within a character: the output begins after the prompt, whole, streamed and echoed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.builders import BOS, ByteTokenizer, ScriptedExecutor
from tests.server.running import Running, serving

EURO = "\u20ac".encode()
PIECES = ["\u20ac".encode(), EURO[2:] + b"D", b"E", "\ufffd".encode()]
FULL_EURO, REST_AND_D, E, REPLACEMENT = range(258, 262)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Outputs are what the prompt begins with, up to the first 0."""
    with serving(
        ScriptedExecutor(lambda name, prompt: prompt[: prompt.index(0)]), tokenizer=ByteTokenizer(PIECES)
    ) as running:
        yield running


def ask(server: Running, output: list[int], end: bytes, **more: Any) -> tuple[str, str, list[str]]:
    """Text in whole and streamed, which must be equal, the reason to end, and the chunks."""
    body = {"prompt": [*output, 0, ord("x"), *end], "max_tokens": 9, **more}
    [choice] = server.post("/v1/completions", body).json()["choices"]
    chunks = [event["choices"][0] for event in server.stream("/v1/completions", body)]
    texts = [chunk["text"] for chunk in chunks if chunk["text"]]
    assert "".join(texts) == choice["text"]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["stop_reason"] == choice["stop_reason"]
    return choice["text"], choice["stop_reason"], texts


def decoded(*parts: bytes) -> str:
    return b"".join(parts).decode(errors="replace")


CASES = [
    ([ord("A")], EURO[:2], "A"),
    ([EURO[2], ord("A")], EURO[:2], "\u20acA"),
    ([EURO[1], ord("A")], EURO[:1], "A"),
    ([FULL_EURO], EURO[:2], "\u20ac"),
    ([BOS, ord("A")], EURO[:2], "A"),
    ([BOS, EURO[2]], EURO[:2], "\u20ac"),
    ([], EURO[:2], ""),
    ([EURO[1]], EURO[:1], ""),
    ([ord("A"), EURO[0]], EURO[:1], "A\ufffd"),
    ([REPLACEMENT], EURO[:1], "\ufffd"),
    ([0xBF, 0xBD], b"\xef", "\ufffd"),
    ([REST_AND_D, E], EURO[:2], "\u20acDE"),
]


@pytest.mark.parametrize(("output", "end", "text"), CASES)
def test_the_output_begins_after_the_prompt(server: Running, output: list[int], end: bytes, text: str) -> None:
    assert ask(server, output, end)[0] == text


@pytest.mark.parametrize(("output", "end", "text"), CASES)
def test_with_echo_everything_is_decoded_at_once(server: Running, output: list[int], end: bytes, text: str) -> None:
    table = ByteTokenizer(PIECES)
    prompt = bytes([0, ord("x")]) + end
    said = b"".join(table.id_to_bytes(token) for token in output if token != BOS)

    assert ask(server, output, end, echo=True)[0] == decoded(said, prompt, said)


def test_a_prompt_alone_is_repeated_with_its_end(server: Running) -> None:
    assert ask(server, [EURO[2]], EURO[:2], echo=True, max_tokens=0)[0] == "\ufffd\0x\ufffd"


@pytest.mark.parametrize("end", [EURO[:1], EURO[:2], b"\xf0\x9f"])
def test_what_the_prompt_leaves_open_does_not_stop_the_output(server: Running, end: bytes) -> None:
    assert ask(server, [ord("A"), ord("B")], end, stop="\ufffd")[:2] == ("AB", None)
    assert ask(server, [ord("A"), REPLACEMENT, ord("B")], end, stop="\ufffd")[:2] == ("A", "\ufffd")


def test_a_stop_string_that_holds_tokens_back(server: Running) -> None:
    assert ask(server, [REST_AND_D, E], EURO[:2], stop="DEF", echo=True)[0].endswith("x\u20acDE")
    assert ask(server, [REST_AND_D, E], EURO[:2], stop="DE", echo=True)[0].endswith("x\u20ac")
