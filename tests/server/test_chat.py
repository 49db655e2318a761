"""``/v1/chat/completions`` over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Running, serving

HELLO = [{"role": "user", "content": "hello"}]
RENDERED = "<user>hello\n<assistant>"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running
        running.rest()


def chat(server: Running, messages: Any = HELLO, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/chat/completions", {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_an_answer_has_openais_shape(server: Running) -> None:
    body = chat(server, max_tokens=6)

    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "chat.completion",
        "model": "bytes",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "<user>", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(RENDERED),
            "completion_tokens": 6,
            "total_tokens": len(RENDERED) + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(server: Running) -> None:
    events = server.stream(
        "/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, "stream_options": {"include_usage": True}}
    )

    *chunks, last = events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in chunks]
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", "content": ""}, {})
    assert "".join(delta["content"] for delta in deltas[:-1]) == "<u"
    assert [event["choices"][0]["finish_reason"] for event in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert [event["usage"] for event in chunks] == [None] * len(chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)


def test_a_stream_shows_its_usage_only_if_asked(server: Running) -> None:
    for options in (None, {"include_usage": False}):
        body = {"messages": HELLO, "max_tokens": 1, "stream_options": options}
        assert all("usage" not in event for event in server.stream("/v1/chat/completions", body))


def test_an_answer_may_go_on_to_the_end_of_the_context(server: Running) -> None:
    usage = chat(server, ignore_eos=True)["usage"]

    assert usage["total_tokens"] == 128


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}]
)
def test_both_names_of_the_limit_work(server: Running, fields: dict[str, int]) -> None:
    assert chat(server, **fields)["usage"]["completion_tokens"] == 3


def test_contents_in_parts_are_joined(server: Running) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    body = chat(server, [{"role": "user", "content": parts}], max_tokens=len(RENDERED))

    assert body["choices"][0]["message"]["content"] == RENDERED


def test_messages_of_answers_can_be_sent_back(server: Running) -> None:
    message = chat(server, max_tokens=2)["choices"][0]["message"]

    assert chat(server, [*HELLO, message, *HELLO], max_tokens=1)["usage"]["prompt_tokens"] > len(RENDERED)


def test_log_probabilities_have_the_bytes_of_their_tokens(server: Running) -> None:
    body = chat(server, [{"role": "é", "content": ""}], max_tokens=3, logprobs=True, top_logprobs=0)

    assert body["choices"][0]["logprobs"]["content"] == [
        {"token": "<", "logprob": -1.0, "bytes": [60], "top_logprobs": []},
        {"token": "bytes:\\xc3", "logprob": -1.0, "bytes": [0xC3], "top_logprobs": []},
        {"token": "bytes:\\xa9", "logprob": -1.0, "bytes": [0xA9], "top_logprobs": []},
    ]


def test_several_choices_stream_side_by_side(server: Running) -> None:
    events = server.stream("/v1/chat/completions", {"messages": HELLO, "max_tokens": 4, "n": 3})
    texts = ["", "", ""]
    for event in events:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""

    assert texts == ["<use"] * 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages[0].role"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        ({"messages": HELLO, "echo": True}, "echo"),
        ({}, "messages"),
    ],
)
def test_bad_fields_are_named(server: Running, body: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/chat/completions", body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
