"""The ways in which models write tool calls, and which of them a model's chat template stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.config.structured import json_rule
from headway.server.tools.parsers import HermesParser, LlamaJsonParser, ToolParser

Tool = Mapping[str, Any]
"""A tool as the chat template gets it: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True)
class Dialect:
    """One way to write tool calls.

    Attributes:
        name: for ``--tool-call-parser``.
        marks: what chat templates of such models have in their text.
        parser: finds calls in an output.
        opening, closing: around a call's object.
        separator: between calls.
        arguments: key of the arguments.
    """

    name: str
    marks: tuple[str, ...]
    parser: type[ToolParser]
    opening: str
    closing: str
    separator: str
    arguments: str

    def grammar(self, tools: Sequence[Tool], *, only_one: bool, answer: Any = None) -> str:
        """A Lark grammar of outputs that are calls of these tools.

        Args:
            tools: one at least.
            only_one: whether there is just one call, or any number from one on.
            answer: a JSON schema; JSON of it may then stand instead of calls.

        Raises:
            ConfigError: the parameters of a tool are no JSON schema.
        """
        calls = "call" if only_one else f"call ({json.dumps(self.separator)} call)*"
        rules = [f"start: {calls}" if answer is None else f"start: {calls} | answer"]
        if answer is not None:
            rules.append(f"answer: {json_rule(answer)}")
        rules.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            function = tool["function"]
            head = f'{self.opening}{{"name": {json.dumps(function["name"])}, "{self.arguments}": '
            rules.append(f"call_{place}: {json.dumps(head)} arguments_{place} {json.dumps('}' + self.closing)}")
            rules.append(f"arguments_{place}: {json_rule(function.get('parameters') or {'type': 'object'})}")
        return "\n".join(rules)


HERMES = Dialect("hermes", ("<tool_call>",), HermesParser, "<tool_call>\n", "\n</tool_call>", "\n", "arguments")
LLAMA3_JSON = Dialect(
    "llama3_json",
    ("<|python_tag|>", '{"name": function name, "parameters"'),
    LlamaJsonParser,
    "",
    "",
    "; ",
    "parameters",
)
DIALECTS = (HERMES, LLAMA3_JSON)


def find_dialect(template: str, choice: str) -> Dialect | None:
    """The dialect named ``choice``, or, for "auto", the one that a chat template speaks."""
    for dialect in DIALECTS:
        if choice == dialect.name or (choice == "auto" and any(mark in template for mark in dialect.marks)):
            return dialect
    return None


def knows_tools(template: str) -> bool:
    """Whether a chat template does anything with tools."""
    return "tools" in template
