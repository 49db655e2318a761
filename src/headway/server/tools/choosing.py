"""From the tools of a chat call to what its prompt, its form and its answer need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.config import ConfigError, Structured
from headway.config.server import ServerOptions
from headway.server.errors import invalid, shown, unusable
from headway.server.forms import check_length, noted
from headway.server.protocol.chat import ChatBody
from headway.server.protocol.tools import ChosenTools
from headway.server.reasoning import ReasoningFormat
from headway.server.tools.dialects import Dialect, Tool
from headway.server.tools.parsers import ToolParser


@dataclass(frozen=True)
class ChatSupport:
    """What the served model can do in chats besides talking.

    Attributes:
        in_template: whether its chat template shows tools to the model.
        dialect: how it writes calls, if that is known.
        special_ids: ids of the tokenizer's special tokens, by their texts.
        reasoning: how it marks its reasoning, if it does.
    """

    in_template: bool = False
    dialect: Dialect | None = None
    special_ids: Mapping[str, int] = field(default_factory=dict)
    reasoning: ReasoningFormat | None = None


@dataclass(frozen=True)
class ToolPlan:
    """What follows from the tools of a call.

    Attributes:
        tools: for the chat template.
        make_parser: for each choice; ``None`` if nothing is to be looked for.
        form: what the output must be.
        form_field: the field that says so.
    """

    tools: tuple[Tool, ...] = ()
    make_parser: Callable[[], ToolParser] | None = None
    form: Structured | None = None
    form_field: str = ""


def plan_tools(
    body: ChatBody, form: Structured | None, form_field: str, options: ServerOptions, support: ChatSupport
) -> ToolPlan:
    """What follows from ``tools``, ``tool_choice`` and ``parallel_tool_calls``.

    Args:
        form, form_field: what the call's other fields say about the form of its output.

    Raises:
        ApiError: they cannot be used, or not with this model, or not with that form.
    """
    tools: tuple[Tool, ...] = tuple(tool.as_template_input() for tool in body.tools or ())
    choice = body.tool_choice or "auto"
    _check(tools)
    if choice == "required" and not tools:
        raise invalid("tool_choice is 'required', but there are no tools", "tool_choice")
    if choice == "none" or (choice == "auto" and not tools):  # some clients send these fields with every call
        return ToolPlan(form=form, form_field=form_field)
    only_one = body.parallel_tool_calls is False
    tools_to_call, forced = tools, choice == "required"
    if isinstance(choice, ChosenTools):
        tools_to_call, forced = _chosen(tools, choice), choice.forced
        only_one |= choice.type == "function"
        if choice.type == "allowed_tools":
            tools = tools_to_call
    dialect = _dialect(support)
    names = frozenset(tool["function"]["name"] for tool in tools)
    if not forced:
        calls = _calls_or_answer(support, tools_to_call, form, form_field, only_one=only_one)
    elif form is not None:
        raise invalid(f"{form_field} cannot go with a tool_choice that forces a call", form_field)
    else:
        calls = _calls(support, tools_to_call, only_one=only_one)
    if calls is not None:
        check_length(calls, "tools", options)
        calls = _noted(calls, body, tools_to_call)
    return ToolPlan(tools, lambda: dialect.parser(names), calls, "tools")


def _check(tools: Sequence[Tool]) -> None:
    names = [tool["function"]["name"] for tool in tools]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise invalid(f"tools has two functions named {name!r}", "tools")


def _chosen(tools: Sequence[Tool], choice: ChosenTools) -> tuple[Tool, ...]:
    """Those of the tools that the choice names, in their own order.

    Raises:
        ApiError: it names none, or one that is not there.
    """
    names = set(choice.names)
    for name in sorted(names - {tool["function"]["name"] for tool in tools}):
        raise invalid(f"tool_choice names {shown(name)}, which is none of the tools", "tool_choice")
    if not names:
        raise invalid("tool_choice allows no tool; use 'none' instead", "tool_choice")
    return tuple(tool for tool in tools if tool["function"]["name"] in names)


def _dialect(support: ChatSupport) -> Dialect:
    if not support.in_template:
        raise invalid("this model's chat template knows no tools", "tools", "unsupported")
    if support.dialect is None:
        message = "it is not known how this model writes tool calls; the server's option tool_call_parser can say so"
        raise invalid(message, "tools", "unsupported")
    return support.dialect


def _calls(support: ChatSupport, tools: Sequence[Tool], *, only_one: bool, answer: object = None) -> Structured:
    dialect = _dialect(support)
    try:
        return Structured.grammar(
            dialect.grammar(tools, only_one=only_one, answer=answer, special_ids=support.special_ids)
        )
    except ConfigError as error:
        raise unusable(error, "tools", "tools") from error


def _noted(calls: Structured, body: ChatBody, tools: Sequence[Tool]) -> Structured:
    """The form of calls with what of their parameters' schemas cannot be kept to.

    Raises:
        ApiError: there is such a thing in a tool that is strict.
    """
    names = {tool["function"]["name"] for tool in tools}
    found = list(calls.annotations)
    for place, tool in enumerate(body.tools or ()):
        if tool.function.name in names and tool.function.parameters is not None:
            schema = Structured.json(tool.function.parameters)
            strict = bool(tool.function.strict)
            found += noted(schema, f"tools[{place}].function.parameters", strict=strict).annotations
    return replace(calls, annotations=tuple(found))


def _calls_or_answer(
    support: ChatSupport, tools: Sequence[Tool], form: Structured | None, form_field: str, *, only_one: bool
) -> Structured | None:
    """The form of outputs that are calls, or, if there is one, an answer of the form asked for."""
    if form is None:
        return None
    if form.kind != "json":
        raise invalid(f"{form_field} can go with tools only if it is JSON", form_field)
    try:
        answer = json.loads(form.text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{form_field} is not JSON: {error}", form_field) from error
    return replace(_calls(support, tools, only_one=only_one, answer=answer), annotations=form.annotations)
