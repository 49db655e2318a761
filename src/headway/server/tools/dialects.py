"""The ways in which models write tool calls, and which of them a model's chat template stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headway.config import ConfigError
from headway.config.structured import json_rule
from headway.server.tools.marks import Mark
from headway.server.tools.parsers import HermesParser, LlamaJsonParser, ToolParser

Tool = Mapping[str, Any]
"""A tool as the chat template gets it: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True)
class Dialect:
    """One way to write tool calls.

    Attributes:
        name: for ``--tool-call-parser``.
        signs: what chat templates of such models have in their text.
        parser: finds calls in an output.
        opening, closing: around a call's object.
        separator: between calls.
        arguments: key of the arguments.
    """

    name: str
    signs: tuple[str, ...]
    parser: type[ToolParser]
    opening: tuple[Mark | str, ...]
    closing: tuple[Mark | str, ...]
    separator: str
    arguments: str

    def grammar(
        self,
        tools: Sequence[Tool],
        *,
        only_one: bool,
        answer: Any = None,
        special_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> str:
        """A Lark grammar of outputs that are calls of these tools, with arguments that are objects.

        Args:
            tools: one at least.
            only_one: whether there is just one call, or any number from one on.
            answer: a JSON schema; JSON of it may then stand instead of calls.
            special_ids: ids of special tokens, by their texts; marks that are such tokens are written so.

        Raises:
            ConfigError: the parameters of a tool are no JSON schema of an object.
        """
        calls = "call" if only_one else f"call ({json.dumps(self.separator)} call)*"
        rules = [f"start: {calls}" if answer is None else f"start: {calls} | answer"]
        if answer is not None:
            rules.append(f"answer: {json_rule(answer)}")
        rules.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            function = tool["function"]
            head = f'{{"name": {json.dumps(function["name"])}, "{self.arguments}": '
            before = _in_lark((*self.opening, head), special_ids)
            after = _in_lark(("}", *self.closing), special_ids)
            rules.append(f"call_{place}: {before} arguments_{place} {after}")
            rules.append(f"arguments_{place}: {json_rule(arguments_schema(function))}")
        return "\n".join(rules)


def arguments_schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments, which are an object whatever its ``parameters`` say.

    Raises:
        ConfigError: the parameters are no schema, or one that no object fits.
    """
    parameters = function.get("parameters")
    if parameters is None or parameters is True:
        return {"type": "object"}
    if not isinstance(parameters, Mapping):
        raise ConfigError("structured", "json", f"has parameters of {function['name']!r} that are no JSON schema")
    kind = parameters.get("type", "object")
    if kind == "object" or (isinstance(kind, list) and "object" in kind):
        return {**parameters, "type": "object"}
    known = isinstance(kind, list) or kind in ("string", "number", "integer", "boolean", "array", "null")
    if not known:
        return parameters  # the compiler says what is wrong with it
    limit = f"has parameters of {function['name']!r} of type {json.dumps(kind)}; arguments are always an object"
    raise ConfigError("structured", "json", limit)


def _in_lark(parts: Sequence[Mark | str], special_ids: Mapping[str, int]) -> str:
    """Texts and marks one after the other, in a rule of a grammar."""
    written = []
    for part in parts:
        text = part.text if isinstance(part, Mark) else part
        is_special = isinstance(part, Mark) and text in special_ids
        written.append(f"<[{special_ids[text]}]>" if is_special else json.dumps(text))
    return " ".join(written)


HERMES = Dialect(
    "hermes",
    ("<tool_call>",),
    HermesParser,
    (HermesParser.OPEN, "\n"),
    ("\n", HermesParser.CLOSE),
    "\n",
    "arguments",
)
LLAMA3_JSON = Dialect(
    "llama3_json",
    ("<|python_tag|>", '{"name": function name, "parameters"'),
    LlamaJsonParser,
    (),
    (),
    "; ",
    "parameters",
)
DIALECTS = (HERMES, LLAMA3_JSON)


def find_dialect(template: str, choice: str) -> Dialect | None:
    """The dialect named ``choice``, or, for "auto", the one that a chat template speaks."""
    for dialect in DIALECTS:
        if choice == dialect.name or (choice == "auto" and any(sign in template for sign in dialect.signs)):
            return dialect
    return None


def knows_tools(template: str) -> bool:
    """Whether a chat template does anything with tools."""
    return "tools" in template
