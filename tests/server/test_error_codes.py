"""The codes that clients act on: which input gives which, and that the documents list them all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import Running, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(max_model_len=64, num_blocks=12) as running:  # 12 blocks of 4 tokens: 47 fit beside an output
        yield running


CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/v1/completions", {"prompt": [-1]}, "invalid_prompt", "prompt"),
        ("/v1/completions", {"prompt": [300]}, "invalid_prompt", "prompt"),
        ("/v1/completions", {"prompt": [[1, 2], [3, 10**9]]}, "invalid_prompt", "prompt"),
        ("/v1/completions", {"prompt": []}, "invalid_prompt", "prompt"),
        ("/v1/completions", {"prompt": ""}, "invalid_prompt", "prompt"),
        ("/v1/completions", {"prompt": "a" * 64}, "context_length_exceeded", "prompt"),
        ("/v1/completions", {"prompt": [7] * 64}, "context_length_exceeded", "prompt"),
        ("/v1/completions", {"prompt": [[7], [7] * 50]}, "context_length_exceeded", "prompt"),
        ("/v1/chat/completions", {"messages": []}, "invalid_prompt", "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a" * 99}]},
            "context_length_exceeded",
            "messages",
        ),
        ("/v1/completions", {"prompt": "a", "model": "other"}, "model_not_found", "model"),
        ("/v1/chat/completions", {"messages": CHAT, "model": "other"}, "model_not_found", "model"),
        ("/v1/completions", {}, "missing_required_parameter", "prompt"),
        ("/v1/chat/completions", {}, "missing_required_parameter", "messages"),
        ("/v1/completions", {"prompt": "a", "max_token": 1}, "unknown_parameter", "max_token"),
        ("/v1/completions", {"prompt": "a", "seed": "x"}, "invalid_type", "seed"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, "invalid_value", "temperature"),
        ("/v1/completions", {"prompt": "a", "n": 1000}, "limit_exceeded", "n"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [300]}, "invalid_value", "stop_token_ids"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"300": 1}}, "invalid_value", "logit_bias"),
        ("/v1/completions", {"prompt": "a", "min_tokens": 64, "max_tokens": 64}, "invalid_value", "min_tokens"),
    ],
    ids=str,
)
def test_each_mistake_has_the_code_that_clients_expect(
    server: Running, path: str, body: dict[str, Any], code: str, param: str
) -> None:
    answer = server.post(path, body)

    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("prompt", "longest"), [("a" * 64, 64), ("a" * 50, 48)])
def test_a_prompt_that_is_too_long_is_told_so_in_the_words_that_clients_look_for(
    server: Running, prompt: str, longest: int
) -> None:
    message = server.complete(prompt).json()["error"]["message"]

    assert f"this model's maximum context length is {longest} tokens" in message.lower()
    assert f"the prompt has {len(prompt)} tokens" in message


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a_call_without_a_body_is_told_so(server: Running, path: str) -> None:
    error = server.http.post(path).json()["error"]

    assert (error["code"], error["param"]) == ("missing_required_parameter", None)
    assert "the body is empty" in error["message"]


LONG = "long \u00e9" * 50_000
MODEL, USER = {"model": LONG}, {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", **MODEL}),
        ("/v1/chat/completions", {"messages": [USER], **MODEL}),
        ("/tokenize", {"prompt": "a", **MODEL}),
        ("/detokenize", {"tokens": [1], **MODEL}),
        ("/v1/completions", {"prompt": "a", LONG: 1}),
        ("/v1/completions", {"prompt": "a", "slo": LONG}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {LONG: 1}}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {LONG: "x"}}),
        ("/v1/completions", {"prompt": "a", "response_format": {"type": LONG}}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {LONG: 1}}),
        ("/v1/completions", {"prompt": "a", "guided_json": {"type": LONG}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": LONG, "text": "a"}]}]}),
        ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL], "tool_choice": LONG}),
        (
            "/v1/chat/completions",
            {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": LONG}}},
        ),
        ("/v1/chat/completions", {"messages": [USER], "function_call": {"name": LONG}}),
        ("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {"messages" + LONG: 1, "messages": 1}}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_error_repeats_no_more_than_the_beginning_of_what_was_sent(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    answer = server.post(path, body)

    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert len(error["message"]) <= 1000 and len(error["param"] or "") <= 200, error["message"][:300]


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_has_its_code(stream: bool) -> None:
    def fail(_: object) -> None:
        raise ArithmeticError("a step failed")

    with serving(ScriptedExecutor(echo, before=fail)) as server:
        answer = server.complete("a", stream=stream)

        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
        assert answer.json()["error"]["type"] == "server_error"
        server.rest()


def codes_in_source() -> set[str]:
    """What is passed as a code anywhere in the server."""
    found: set[str] = set()
    for path in (ROOT / "src/headway/server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            given += node.args[2:3] if name == "invalid" else node.args[1:2] if name == "unavailable" else []
            found |= {leaf.value for value in given for leaf in ast.walk(value) if _is_code(leaf)}
    return found - {"type"}  # a key, in first["type"]


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(re.fullmatch("[a-z_]+", node.value))


def documented_codes() -> set[str]:
    text = (ROOT / "docs/server.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| [45]\d\d", line)]
    return {code for row in rows for code in re.findall(r"`([a-z_]+)`", row.split("|")[2])}


def test_the_documents_list_every_code() -> None:
    listed = documented_codes()
    assert len(listed) > 15
    assert codes_in_source() - listed == set()


def test_every_code_has_a_test() -> None:
    tests = [path.read_text() for path in (ROOT / "tests/server").glob("test_*.py")]
    asserted = {code for text in tests for code in re.findall(r'"([a-z_]+)"', text)}
    assert documented_codes() - asserted == set()
