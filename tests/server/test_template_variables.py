"""Fields that go to the chat template: given to a template that knows them, without effect for others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.build import build_engine
from headway.config import EngineOptions
from headway.models.tiny import make_tiny
from headway.server.protocol.fields import note_taken
from headway.server.variables import variables_of
from tests.server.running import Running, serving

TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "[{{ enable_thinking }} {{ reasoning_effort }} {{ verbosity }} {{ shade | tojson if shade is defined }}]"
)
HELLO = [{"role": "user", "content": "hi"}]


def serve(folder: Path, template: str) -> Any:
    """A tiny model with this template."""
    make_tiny(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return serving(engine=build_engine(EngineOptions(model=str(folder), num_blocks=100)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serve(tmp_path_factory.mktemp("variables"), TEMPLATE) as running:
        yield running
        running.rest()


def shown(server: Running, **fields: Any) -> str:
    """What the template made of the fields."""
    prompts = []
    tokenizer: Any = server.engine.tokenizer
    apply = type(tokenizer).apply_chat_template
    tokenizer.apply_chat_template = lambda *args, **more: prompts.append(apply(tokenizer, *args, **more)) or prompts[-1]
    try:
        answer = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, **fields})
    finally:
        del tokenizer.apply_chat_template
    assert answer.status_code == 200, answer.text
    return str(prompts[-1]).removeprefix("hi")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "[   ]"),
        ({"reasoning_effort": "high"}, "[True high  ]"),
        ({"reasoning_effort": "none"}, "[False none  ]"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "[False high  ]"),
        ({"enable_thinking": True}, "[True   ]"),
        ({"thinking": {"type": "disabled"}}, "[False   ]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "[True   ]"),
        ({"verbosity": "low"}, "[  low ]"),
        ({"chat_template_kwargs": {"enable_thinking": False, "shade": {"a": [1]}}}, '[False   {"a": [1]}]'),
        ({"chat_template_kwargs": {"enable_thinking": False, "other": 1}, "reasoning_effort": "low"}, "[False low  ]"),
    ],
    ids=str,
)
def test_the_template_is_given_what_it_knows(server: Running, fields: dict[str, Any], expected: str) -> None:
    assert shown(server, **fields) == expected


def test_a_template_that_knows_nothing_of_it_writes_the_same_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_taken.cache_clear()
    with serve(tmp_path, "{% for message in messages %}{{ message.content }}{% endfor %}.") as plain:
        for _ in range(2):
            assert shown(plain, reasoning_effort="low", chat_template_kwargs={"shade": 1}) == "."

    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([message for message in said if "the chat template knows no such variable" in message]) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"shade": "x" * 20_000}}, "chat_template_kwargs", "limit_exceeded"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
        ({"reasoning_effort": 5}, "reasoning_effort", "invalid_type"),
        ({"reasoning_effort": "x" * 65}, "reasoning_effort", "invalid_value"),
        ({"thinking": {"typ": "enabled"}}, "thinking.typ", "unknown_parameter"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_no_template_can_be_given_is_refused(
    server: Running, fields: dict[str, Any], param: str, code: str
) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HELLO, **fields})

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_variables_are_found_in_templates_of_any_dialect() -> None:
    assert variables_of("{% set a = 1 %}{{ a }}{{ b.c }}{% if d is defined %}{% endif %}") == {"b", "d"}
    assert "b" in variables_of("{% generation %}{{ b }}{% endgeneration %}")
    assert variables_of("") == frozenset()
