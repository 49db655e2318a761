"""Whatever a client sends, the server answers it, with no error of its own, and is at rest when all is over.

Two sources: schemathesis, which makes calls out of the OpenAPI document, right and wrong ones; and bodies of generation
calls made here, most of whose fields can be used, so that they reach the engine in every combination.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from headway.build import build_engine
from headway.config import EngineOptions
from headway.models.tiny import make_tiny
from tests.server.running import Running, events_of, serving
from tests.server.test_tools import ADD, NOW, TEMPLATE

QUIET = settings(
    deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
NOT_NOW = {503: ("queue_full", "queue_tokens", "compile_queue"), 504: ("queue_timeout",)}
"""Statuses that are no error of the server's own, with their reasons: it is full, or the client's deadline was near."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_tiny(tmp_path_factory.mktemp("fuzz"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    engine = build_engine(EngineOptions(model=str(folder), num_blocks=200, max_model_len=256, max_num_queued_reqs=64))
    with serving(engine=engine) as running:
        yield running
        running.rest()


def check(answer: Any, path: str) -> None:
    """No error of the server's own; ``answer`` is of either client."""
    if answer.status_code in NOT_NOW:
        assert answer.json()["error"]["code"] in NOT_NOW[answer.status_code]
    else:
        assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and not path.startswith("/health"):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# --- calls out of the OpenAPI document ----------------------------------------------------------------------


def test_calls_out_of_the_openapi_document_meet_no_server_error(server: Running) -> None:
    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    paths = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        paths.add(operation.path)
        takes_more = bool(operation.body or operation.query)
        for mode in list(GenerationMode) if takes_more else [GenerationMode.POSITIVE]:

            @settings(QUIET, max_examples=40 if operation.body else 5)
            @given(operation.as_strategy(generation_mode=mode))
            def call(case: schemathesis.Case) -> None:
                check(case.call(base_url=server.url), case.path)

            call()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/health"} <= paths


# --- bodies that can mostly be used -------------------------------------------------------------------------

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["a", "é😀", "<|im_end|>", "\x00", "\ud83d".encode("utf-8", "replace").decode()]
)
TOKENS = st.lists(st.integers(0, 319), min_size=1, max_size=20)
SCHEMAS = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"enum": ["x", 1, None]},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        {"not": {}},
        {},
    ]
)
PATTERNS = st.sampled_from(["[a-z]{1,5}", "(a|b)*", "", "(", "a{1000}", r"\p{L}+", "x|"])
COMMON = {
    "max_tokens": st.none() | st.integers(0, 12) | st.sampled_from([-1, 2**40]),
    "temperature": st.sampled_from([0, 0.5, 1, 2, -1, 1e9]),
    "top_p": st.sampled_from([0, 1e-9, 0.5, 1, 1.5]),
    "top_k": st.sampled_from([-2, -1, 0, 1, 5, 10**9]),
    "min_p": st.sampled_from([0, 0.3, 1]),
    "repetition_penalty": st.sampled_from([0.5, 1, 2, 0]),
    "presence_penalty": st.sampled_from([-2, 0.5, 2]),
    "frequency_penalty": st.sampled_from([-2, 0.5, 3]),
    "logit_bias": st.dictionaries(st.integers(-1, 330).map(str), st.sampled_from([-100, 0.5, 100, 1e5]), max_size=3),
    "seed": st.sampled_from([None, 0, 1, -1, 2**63, 2**70]),
    "stop": TEXTS | st.lists(TEXTS, max_size=3),
    "stop_token_ids": st.lists(st.integers(-1, 330), max_size=3),
    "min_tokens": st.sampled_from([0, 1, 8, 500]),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "n": st.integers(0, 4),
    "stream": st.booleans(),
    "stream_options": st.sampled_from([None, {"include_usage": True}]),
    "priority": st.sampled_from([0, -5, 2**31, 2**80]),
    "cache_salt": TEXTS,
    "timeout": st.sampled_from([None, 0, 0.001, 5, 1e9]),
    "response_format": st.one_of(
        st.sampled_from([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}]),
        SCHEMAS.map(lambda schema: {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}),
    ),
    "structured_outputs": st.one_of(
        PATTERNS.map(lambda pattern: {"regex": pattern}),
        SCHEMAS.map(lambda schema: {"json": schema}),
        st.lists(TEXTS, max_size=3).map(lambda texts: {"choice": texts}),
        st.sampled_from([{"grammar": 'start: "a"+'}, {"grammar": "start: start"}, {"grammar": "("}, {}]),
    ),
    "user": TEXTS,
}
COMPLETION = {
    "prompt": TEXTS | TOKENS | st.lists(TEXTS, max_size=3) | st.lists(TOKENS, max_size=3),
    **COMMON,
    "echo": st.booleans(),
    "logprobs": st.sampled_from([None, 0, 2, 50]),
    "best_of": st.sampled_from([None, 1, 3]),
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", ""]), "content": TEXTS | st.none()}
    ),
    max_size=3,
)
CHAT = {
    "messages": MESSAGES,
    **COMMON,
    "max_completion_tokens": st.none() | st.integers(0, 12),
    "logprobs": st.booleans(),
    "top_logprobs": st.sampled_from([None, 0, 3]),
    "tools": st.lists(st.sampled_from([ADD, NOW]), max_size=2),
    "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "add"}}]),
    "parallel_tool_calls": st.booleans(),
}


def bodies(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A body with the first field, a limit, and up to five others."""
    first, *others = fields
    chosen = st.lists(st.sampled_from(others), max_size=5, unique=True)
    limit: st.SearchStrategy[dict[str, Any]] = st.just({"max_tokens": 6})
    return st.builds(
        lambda base, more: {**base, **more},
        st.tuples(st.fixed_dictionaries({first: fields[first]}), limit).map(lambda parts: {**parts[1], **parts[0]}),
        chosen.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names})),
    )


@pytest.mark.parametrize(("path", "fields"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_plausible_calls_meet_no_server_error(server: Running, path: str, fields: dict[str, Any]) -> None:
    statuses = []

    @settings(QUIET, max_examples=250)
    @given(bodies(fields))
    def call(body: dict[str, Any]) -> None:
        answer = server.post(path, body)
        check(answer, path)
        statuses.append(answer.status_code)
        if answer.status_code == 200 and body.get("stream"):
            errors = [event["error"]["code"] for event in events_of(answer.content) if "error" in event]
            assert errors in ([], ["structured_output_failed"], ["queue_timeout"])

    call()
    assert statuses.count(200) > 50
