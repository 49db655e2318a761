"""What the model behind the clients' tests says. Imported by the server and by the tests, so it needs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

HELLO, GREETING = "Say hello.", "Hello, wörld \N{WAVING HAND SIGN}!"
WEATHER_QUESTION, CITY, WEATHER = "How is the weather in Oslo?", "Oslo", "7 degrees"
WEATHER_ANSWER = f"It is {WEATHER} there."
PERSON_QUESTION = "Who wrote the first program?"
PERSON = {"name": "Ada Lovelace", "born": 1815, "tags": ["mathematics", "poetry"]}
PERSON_ANSWER = "Ada Lovelace did."
THOUGHT = "They ask; I answer."


def sayings(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool) -> Iterator[str]:
    """What the model would like to say, the dearest first; the first that has the form asked for is said.

    Args:
        messages: of the conversation, as the chat template got them.
        tools: that it may call.
        thinks: whether it was told to think first.
    """
    answers = list(_answers(messages, tools))
    if thinks:
        yield from (f"<think>\n{THOUGHT}\n</think>\n\n{answer}" for answer in answers)
    yield from answers


def _answers(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = [tool["function"]["name"] for tool in tools]
    asked = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    instructed = " ".join(message["content"] for message in messages)
    results = [message["content"] for message in messages if message["role"] == "tool"]
    person = json.dumps(PERSON)
    if WEATHER_QUESTION in asked:
        if "weather" in names and not results:
            yield _call("weather", {"city": CITY})
        if results and results[-1] == WEATHER:
            yield WEATHER_ANSWER
        yield "I cannot know."
    elif PERSON_QUESTION in asked:
        yield from (_call(name, PERSON) for name in names if name != "weather")
        if "JSON" in instructed.upper():
            yield f"Here it is:\n```json\n{person}\n```"
        yield PERSON_ANSWER
    elif HELLO in asked:
        yield GREETING
    yield person


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
