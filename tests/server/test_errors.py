"""What cannot be served is told in OpenAI's shape, names field and limit, and disturbs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Running, serving

LIMITS = {"max_prompts": 3, "max_n": 4, "max_sequences": 8, "max_logprobs": 5, "max_stop": 2, "max_stop_chars": 10}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(options={**LIMITS, "max_logit_bias": 2, "max_body_mib": 0.25}) as running:
        yield running
        running.rest()
        assert running.complete("abc", max_tokens=3).json()["choices"][0]["text"] == "abc"


@pytest.fixture(autouse=True)
def nobody_is_disturbed(server: Running) -> Iterator[None]:
    """A stream that runs meanwhile."""
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "ab", "max_tokens": 100, "stream": True}
    ) as other:
        yield
        assert b'"finish_reason":"length"' in other.read()


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    # what is sent besides the prompt, the field to blame, what the message must say
    ({"prompt": None}, "prompt", ""),
    ({"prompt": []}, "prompt", "one prompt at least"),
    ({"prompt": ""}, "prompt", "no tokens"),
    ({"prompt": [""]}, "prompt", "no tokens"),
    ({"prompt": [[]]}, "prompt", "no tokens"),
    ({"prompt": [[1], []]}, "prompt", "no tokens"),
    ({"prompt": 7}, "prompt", "string"),
    ({"prompt": {"text": "a"}}, "prompt", "string"),
    ({"prompt": ["a", 1]}, "prompt[1]", "string"),
    ({"prompt": [1, "a"]}, "prompt[1]", "integer"),
    ({"prompt": [1, [2]]}, "prompt[1]", "integer"),
    ({"prompt": [1.5]}, "prompt[0]", "integer"),
    ({"prompt": [True]}, "prompt[0]", "integer"),
    ({"prompt": [[1], "a"]}, "prompt[1]", "list"),
    ({"prompt": [-1]}, "prompt", "0 to 299"),
    ({"prompt": [300]}, "prompt", "0 to 299"),
    ({"prompt": [2**62, -1]}, "prompt", "0 to 299"),
    ({"prompt": [2**64 - 1, 5]}, "prompt", "token ids"),
    ({"prompt": ["a"] * 4}, "prompt", "at most 3"),
    ({"prompt": "x" * 128}, "prompt", "max_model_len=128"),
    ({"prompt": ["ok", "x" * 128]}, "prompt", "at most 127"),
    ({"max_tokens": 0}, "max_tokens", "echo"),
    ({"max_tokens": -1}, "max_tokens", "at least 1"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"min_tokens": -1}, "min_tokens", "at least 0"),
    ({"min_tokens": 17}, "min_tokens", "must not exceed max_tokens (16)"),
    ({"min_tokens": 2**50, "max_tokens": 2**51}, "min_tokens", "max_model_len (128)"),
    ({"n": 0}, "n", "at least 1"),
    ({"n": 5}, "n", "at most 4"),
    ({"prompt": ["a"] * 3, "n": 3}, "n", "at most 8"),
    ({"best_of": 5}, "best_of", "at most 4"),
    ({"n": 3, "best_of": 2}, "best_of", "at least n (3)"),
    ({"best_of": 2, "stream": True}, "best_of", "cannot be streamed"),
    ({"logprobs": 6}, "logprobs", "at most 5"),
    ({"logprobs": -1}, "logprobs", "at least 0"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"echo": True, "logprobs": 1, "stream": True}, "stream", "cannot be streamed"),
    ({"echo": "yes"}, "echo", "boolean"),
    ({"suffix": "x"}, "suffix", "nothing can be inserted"),
    ({"stop": ["a", "b", "c"]}, "stop", "at most 2"),
    ({"stop": "x" * 11}, "stop", "at most 10"),
    ({"stop": ""}, "stop", "empty"),
    ({"stop": ["a", ""]}, "stop", "empty"),
    ({"stop": 5}, "stop", "string"),
    ({"stop_token_ids": [1, 2, 3]}, "stop_token_ids", "at most 2"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "negative"),
    ({"stop_token_ids": [300]}, "stop_token_ids", "0 to 299"),
    ({"stop_token_ids": [2**40]}, "stop_token_ids", "0 to 299"),
    ({"temperature": -0.1}, "temperature", "at least 0"),
    ({"temperature": 101}, "temperature", "at most 100"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.01}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "at least 0"),
    ({"min_p": 2}, "min_p", "at most 1"),
    ({"presence_penalty": 2.1}, "presence_penalty", "at most 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "at least -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "at least 0.01"),
    ({"logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias", "at most 2"),
    ({"logit_bias": {"one": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "100"),
    ({"logit_bias": {"300": 1}}, "logit_bias", "0 to 299"),
    ({"logit_bias": {"1": "x"}}, "logit_bias", "the value of '1' is no number"),
    ({"logit_bias": {"1": 1, "2": True}}, "logit_bias", "the value of '2' is no number"),
    ({"logit_bias": [1]}, "logit_bias", "dict"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"priority": 2**31}, "priority", "2147483647"),
    ({"priority": 2**63}, "priority", "2147483647"),
    ({"cache_salt": "x" * 257}, "cache_salt", "at most 256"),
    ({"timeout": 0}, "timeout", "above 0"),
    ({"timeout": 1e300}, "timeout", "at most 86400"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"include": True}}, "stream_options.include", "did you mean"),
    ({"max_token": 5}, "max_token", "did you mean 'max_tokens'"),
    ({"do_not_cache": True}, "do_not_cache", "unknown parameter"),
    ({"x" * 200_000: True}, "x" * 40, "unknown parameter"),
    ({"messages": []}, "messages", "unknown parameter"),
    ({"model": 5}, "model", "string"),
]


@pytest.mark.parametrize(("fields", "param", "message"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_named_with_its_limit(server: Running, fields: dict[str, Any], param: str, message: str) -> None:
    answer = server.post("/v1/completions", {"prompt": "ab", **fields})

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert message in error["message"]
    assert error["code"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 20_000 + b"1" + b"}" * 20_000], ids=range(2))
def test_what_is_too_deep_to_be_read_is_told_so(server: Running, content: bytes) -> None:
    answer = server.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "nested_too_deeply"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"prompt": "a"} x',
        b'{"prompt": NaN}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b"\x00",
    ],
    ids=range(6),
)
def test_what_is_not_json_is_told_so(server: Running, content: bytes) -> None:
    answer = server.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'"text"', b"5", b"{}"])
def test_what_is_no_object_with_a_prompt_is_refused(server: Running, content: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/detokenize"):
        answer = server.http.post(path, content=content, headers={"Content-Type": "application/json"})

        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status", "code"),
    [
        ("GET", "/nowhere", {}, b"", 404, "not_found"),
        ("POST", "/v1/completions/", {"Content-Type": "application/json"}, b"{}", 404, "not_found"),
        ("GET", "/v1/models/other", {}, b"", 404, "model_not_found"),
        ("POST", "/v1/abort/nothing", {}, b"", 404, "request_not_found"),
        ("GET", "/v1/completions", {}, b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", {}, b"", 405, "method_not_allowed"),
        ("POST", "/v1/completions", {}, b'{"prompt": "a"}', 415, "unsupported_media_type"),
        ("POST", "/tokenize", {"Content-Type": "text/plain"}, b'{"prompt": "a"}', 415, "unsupported_media_type"),
        ("POST", "/v1/completions", {"Content-Type": "application/json"}, b" " * 300_000, 413, "body_too_large"),
    ],
)
def test_other_mistakes_have_the_same_shape(
    server: Running, method: str, path: str, headers: dict[str, str], content: bytes, status: int, code: str
) -> None:
    answer = server.http.request(method, path, headers=headers, content=content)

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_without_a_length_is_cut_off_at_the_limit(server: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    answer = server.http.post("/v1/completions", content=endless(), headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert str(2**18) in answer.json()["error"]["message"]


def test_the_content_type_may_have_parameters(server: Running) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}

    assert server.http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers).status_code == 200


def test_a_request_that_fails_in_a_step_does_not_end_the_engine(server: Running) -> None:
    for model in ("", None, "bytes"):
        assert server.complete("ab", model=model, max_tokens=1).json()["model"] == "bytes"
    wrong = server.complete("ab", model="other")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "u"}]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "text"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [2**63]}, "tokens"),
    ],
)
def test_bad_fields_of_the_token_endpoints_are_named(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.post(path, body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_tokens_go_there_and_back(server: Running) -> None:
    tokens = server.post("/tokenize", {"prompt": "h\u00e9", "return_token_strs": True}).json()
    chat = server.post("/tokenize", {"messages": [{"role": "u", "content": "h"}]}).json()

    assert tokens == {
        "count": 3,
        "max_model_len": 128,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"],
    }
    assert bytes(chat["tokens"]) == b"<u>h\n<assistant>"
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": "h\u00e9"}
    assert server.post("/detokenize", {"tokens": [104, 257]}).json() == {"prompt": "h</s>"}
    assert server.post("/detokenize", {"tokens": [104, 257], "skip_special_tokens": True}).json() == {"prompt": "h"}
    long = "x" * 9000
    tokens = server.post("/tokenize", {"prompt": long}).json()
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": long}


def test_the_version_is_told(server: Running) -> None:
    assert server.http.get("/version").json()["version"].count(".") == 2


def test_the_api_describes_itself(server: Running) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]

    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health/live"} <= set(paths)
