"""instructor: objects out of a model, in every way that it knows."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pytest
from pydantic import BaseModel

from tests.clients.asking import ADA, MODEL, Person
from tests.clients.script import GREETING, HELLO, PERSON_QUESTION

MODES = [
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.MD_JSON,
]
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": PERSON_QUESTION}]}


class People(BaseModel):
    """The same with a set, which schemas call a list of unique items."""

    name: str
    born: int
    tags: set[str]


def client(base_url: str, mode: instructor.Mode = instructor.Mode.TOOLS) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=base_url, api_key="none", max_retries=0), mode=mode)


def test_chat(base_url: str) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": HELLO}]}
    answer = client(base_url).chat.completions.create(response_model=None, **asked)

    assert answer.choices[0].message.content == GREETING


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_structured_output(base_url: str, mode: instructor.Mode) -> None:
    made, answer = client(base_url, mode).chat.completions.create_with_completion(
        response_model=Person, max_retries=0, **ASK
    )

    assert made.model_dump() == ADA.model_dump()  # it is of a class that the library derives
    assert answer.usage.completion_tokens > 0


def test_a_set(base_url: str) -> None:
    made = client(base_url).chat.completions.create(response_model=People, max_retries=0, **ASK)

    assert made.tags == {"mathematics", "poetry"}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_stream_of_a_growing_object(base_url: str, mode: instructor.Mode) -> None:
    made = list(client(base_url, mode).chat.completions.create_partial(response_model=Person, max_retries=0, **ASK))

    assert made[-1].model_dump() == ADA.model_dump()
    assert len(made) > 1


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_thinking(base_url: str, mode: instructor.Mode) -> None:
    for fields in ({"reasoning_effort": "high"}, {"extra_body": {"enable_thinking": True}}):
        made = client(base_url, mode).chat.completions.create(response_model=Person, max_retries=0, **fields, **ASK)

        assert made.model_dump() == ADA.model_dump()
