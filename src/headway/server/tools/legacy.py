"""OpenAI's older way to call functions: ``functions`` and ``function_call`` are read as tools, and answered in kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.server.errors import ApiError, invalid, shown
from headway.server.protocol.chat import ChatBody
from headway.server.protocol.tools import ChosenTools, FunctionName, Tool

_NAMES = {"tools": "functions", "tool_choice": "function_call"}


def with_tools(body: ChatBody) -> ChatBody:
    """The body in today's words. It was one call at most.

    Raises:
        ApiError: both ways are used, or a function is to be called and there are none.
    """
    choice = body.function_call
    if body.functions and body.tools:
        raise invalid("functions and tools mean the same; give tools", "functions")
    if not body.functions:
        if isinstance(choice, FunctionName):
            raise invalid(f"function_call names {shown(choice.name)}, but there are no functions", "function_call")
        return body
    named = ChosenTools(type="function", function=choice) if isinstance(choice, FunctionName) else choice
    tools = [Tool(type="function", function=function) for function in body.functions]
    return body.model_copy(update={"tools": tools, "tool_choice": named, "parallel_tool_calls": False})


@contextmanager
def in_its_words(body: ChatBody) -> Iterator[None]:
    """Errors about tools blame the older fields, if those were used."""
    try:
        yield
    except ApiError as error:
        if body.functions and error.param in _NAMES:
            error.param = _NAMES[error.param]
        raise


def as_function_call(message: dict[str, Any]) -> dict[str, Any] | None:
    """A message, or a delta of one, with its first call in the older form; ``None`` if it has only later ones."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    first = calls[0]
    if first.get("index", 0) > 0:
        return rest or None
    return {**rest, "function_call": dict(first["function"])}
