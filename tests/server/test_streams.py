"""A stream is its answer in pieces: joined, they are the same bytes, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builders import EOS, ByteTokenizer, ScriptedExecutor, echo
from tests.server.running import Gate, Running, events_of, serving

FIRST_PIECE = 258
PIECES = (
    b"DEF",
    b"G",
    b"HI",
    b"J",
    b"X",
    b"abcd",
    "\u20ac".encode()[:2],
    "\u20ac".encode()[2:],
    "\U0001f600".encode(),
    b" the",
)
TOKENIZER = ByteTokenizer(PIECES)
D, G, H, J, X, ABCD, HALF, OTHER_HALF, SMILE, THE = range(FIRST_PIECE, FIRST_PIECE + len(PIECES))


class Script:
    """What the model says next, whatever it is asked."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()

    def __call__(self, request_id: str, prompt: list[int]) -> Sequence[int]:
        return self.tokens


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Running]:
    with serving(ScriptedExecutor(script), tokenizer=TOKENIZER) as running:
        yield running
        running.rest()


class Joined:
    """The pieces of one choice, put together."""

    def __init__(self, chunks: list[dict[str, Any]], text_of: Any) -> None:
        self.texts = [text_of(chunk) for chunk in chunks]
        self.text = "".join(self.texts)
        self.token_ids = [token for chunk in chunks for token in chunk.get("token_ids", [])]
        self.end = [(chunk["finish_reason"], chunk["stop_reason"]) for chunk in chunks if chunk["finish_reason"]]
        self.logprobs: dict[str, list[Any]] = {}
        for chunk in chunks:
            for name, values in (chunk["logprobs"] or {}).items():
                self.logprobs.setdefault(name, []).extend(values or [])


def completion(server: Running, **fields: Any) -> tuple[dict[str, Any], Joined, dict[str, Any], dict[str, Any]]:
    """The answer as a whole, as a joined stream, and both usages."""
    body = {"prompt": "?", "return_token_ids": True, "logprobs": 0, **fields}
    whole = server.post("/v1/completions", body).json()
    events = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    joined = Joined([event["choices"][0] for event in events[:-1]], lambda chunk: chunk["text"])
    return whole["choices"][0], joined, whole["usage"], events[-1]["usage"]


def without_cache(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


STOPS = st.sampled_from(["DEFGHIJ", "bc", "DEFX", "\u20ac", "\u20ac\U0001f600", " the", "e", "JJ", "\ufffd", "HID"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.lists(st.integers(FIRST_PIECE, THE) | st.sampled_from([*b"aDJ", 0xE2, 0x82, 0xAC, 0xF0]), max_size=14),
    stops=st.lists(STOPS, max_size=3, unique=True),
    max_tokens=st.integers(1, 16),
    keep=st.booleans(),
)
def test_streams_equal_whole_answers(
    server: Running, script: Script, tokens: list[int], stops: list[str], max_tokens: int, keep: bool
) -> None:
    script.tokens = tokens
    whole, joined, usage, stream_usage = completion(
        server, stop=stops, max_tokens=max_tokens, include_stop_str_in_output=keep
    )

    assert joined.text == whole["text"]
    assert joined.token_ids == whole["token_ids"]
    assert joined.logprobs == {name: values for name, values in whole["logprobs"].items() if joined.logprobs}
    assert joined.end == [(whole["finish_reason"], whole["stop_reason"])]
    assert without_cache(stream_usage) == without_cache(usage)
    assert usage["completion_tokens"] == len(whole["token_ids"]) == len(whole["logprobs"]["tokens"])
    if not keep:
        assert not any(stop in whole["text"] for stop in stops)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.lists(st.integers(FIRST_PIECE, THE), max_size=14), stops=st.lists(STOPS, max_size=3, unique=True))
def test_chat_streams_equal_whole_chat_answers(
    server: Running, script: Script, tokens: list[int], stops: list[str]
) -> None:
    script.tokens = tokens
    body = {"messages": [{"role": "a", "content": ""}], "stop": stops, "max_tokens": 12}
    [whole] = server.post("/v1/chat/completions", body).json()["choices"]
    events = server.stream("/v1/chat/completions", body)
    joined = Joined([event["choices"][0] for event in events], lambda chunk: chunk["delta"].get("content") or "")

    assert joined.text == whole["message"]["content"]
    assert joined.end == [(whole["finish_reason"], whole["stop_reason"])]


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_no_half_characters_before_the_end(server: Running, script: Script, max_tokens: int) -> None:
    content = "a\u00e9\u20ac\U0001f600".encode() + b"zz"
    script.tokens = list(content)
    whole, joined, *_ = completion(server, max_tokens=max_tokens)

    assert whole["text"] == joined.text == content[:max_tokens].decode(errors="replace")
    assert not any("\ufffd" in text for text in joined.texts[:-2])


@pytest.mark.parametrize("pieces", [[HALF, OTHER_HALF], [0xE2, 0x82, 0xAC], [0xE2, ord("x"), 0x82], [HALF, SMILE]])
def test_characters_over_several_tokens(server: Running, script: Script, pieces: list[int]) -> None:
    script.tokens = [ABCD, *pieces, THE]
    whole, joined, *_ = completion(server, max_tokens=9)

    expected = b"".join(map(TOKENIZER.id_to_bytes, script.tokens)).decode(errors="replace")
    assert whole["text"] == joined.text == expected


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "reason"),
    [
        ([D, G, H, J, X], ["DEFGHIJ"], "", "DEFGHIJ"),
        ([X, D, G, H, J], ["DEFGHIJ"], "X", "DEFGHIJ"),
        ([D, X, X], ["DEFGHIJ"], "DEFXX", None),
        ([D, G, H, X], ["DEFGHIJ"], "DEFGHIX", None),
        ([ABCD, X], ["bc"], "a", "bc"),
        ([D, G, H, J], ["DEFGHIJ", "GH"], "", "DEFGHIJ"),
        ([D, G, H, J], ["FGHIJ", "EF"], "D", "EF"),
        ([D, G, H], ["DEFGHIJ"], "DEFGHI", None),
    ],
)
def test_nothing_of_a_stop_string_leaves(
    server: Running, script: Script, tokens: list[int], stop: list[str], text: str, reason: str | None
) -> None:
    script.tokens = tokens
    whole, joined, *_ = completion(server, stop=stop)

    assert whole["text"] == joined.text == text
    assert whole["stop_reason"] == reason
    assert whole["finish_reason"] == "stop"  # by a stop string, or by the end of the text


def test_ids_go_out_with_their_text(server: Running, script: Script) -> None:
    script.tokens = [D, G, HALF, OTHER_HALF, H, X, SMILE, ABCD]
    events = server.stream(
        "/v1/completions", {"prompt": "?", "stop": ["DEFGHIJ", "HIXa"], "return_token_ids": True, "logprobs": 0}
    )

    for event in events:
        chunk = event["choices"][0]
        token_ids = [token for token in chunk.get("token_ids", []) if token != EOS]
        assert b"".join(map(TOKENIZER.id_to_bytes, token_ids)).decode() == chunk["text"]
        if chunk["logprobs"]:
            assert len(chunk["logprobs"]["tokens"]) == len(chunk["token_ids"])


def test_a_stream_is_written_as_openai_writes_it(server: Running, script: Script) -> None:
    script.tokens = [ABCD, THE]
    with server.http.stream("POST", "/v1/completions", json={"prompt": "?", "stream": True}) as response:
        content = response.read()

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-request-id"].startswith("cmpl-")
    assert content.endswith(b"\n\ndata: [DONE]\n\n")
    assert content.startswith(b'data: {"id":"cmpl-')
    assert len(events_of(content)) >= 2


def test_several_prompts_and_choices_stream_under_their_index(server: Running, script: Script) -> None:
    script.tokens = [ABCD, THE, SMILE]
    events = server.stream("/v1/completions", {"prompt": ["x", "y"], "n": 2, "echo": True})
    texts = [""] * 4
    for event in events:
        [chunk] = event["choices"]
        texts[chunk["index"]] += chunk["text"]

    assert texts == [prompt + "abcd the\U0001f600" for prompt in "xxyy"]


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"keep_alive": 0.02}) as server:
        body = {"prompt": "ab", "max_tokens": 2, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            chunks = response.iter_bytes()
            content = next(chunks) + next(chunks)
            assert content.replace(b": waiting\n\n", b"") == b""
            gate.open()
            content += b"".join(chunks)

        assert "".join(event["choices"][0]["text"] for event in events_of(content)) == "ab"
        server.rest()


def test_without_news_and_keep_alive_nothing_is_sent() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"keep_alive": None}) as server:
        connection = server.connect("/v1/completions", {"prompt": "ab", "max_tokens": 1, "stream": True})
        gate.wait()
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        gate.open()
        server.until(lambda: not server.service.calls)
        connection.close()
        server.rest()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("include_usage", [True, False])
def test_the_usage_so_far_is_in_every_chunk(server: Running, script: Script, path: str, include_usage: bool) -> None:
    script.tokens = [D, G, H, J, X]
    body = {"prompt": ["ab", "abc"]} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    options = {"continuous_usage_stats": True, "include_usage": include_usage}
    body = {**body, "n": 2, "seed": 1, "max_tokens": 5}
    whole = server.post(path, body).json()["usage"]
    events = server.stream(path, {**body, "stream_options": options})

    usages = [event["usage"] for event in events]
    assert {usage["prompt_tokens"] for usage in usages} == {whole["prompt_tokens"]}
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[-1] == whole["completion_tokens"] > counts[0]
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert [bool(event["choices"]) for event in events[-2:]] == [True, not include_usage]
