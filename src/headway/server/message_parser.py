"""From the text of one output to the parts of a message: reasoning, content and tool calls, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.server.reasoning import ReasoningParser
from headway.server.tools.marks import Mark, shown, with_marks
from headway.server.tools.parsers import Delta, ToolParser


class MessageParser:
    """Splits an output. Calls that stand in the reasoning are none.

    Args:
        marks: that the two parsers look for; special tokens of these texts are told them.
        reasoning: ``None`` if the model does not reason.
        tools: ``None`` if no calls are looked for.
        show_reasoning: whether clients are to see it.
    """

    def __init__(
        self,
        marks: Sequence[Mark],
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        *,
        show_reasoning: bool = True,
    ) -> None:
        self._marks = marks
        self._reasoning = reasoning
        self._tools = tools
        self._show_reasoning = show_reasoning

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._tools.num_calls if self._tools is not None else 0

    def feed(self, text: str, specials: Sequence[tuple[int, str]] = ()) -> list[Delta]:
        """Take in what comes next of the output.

        Args:
            text: new text.
            specials: special tokens that left no text, by their place in it.
        """
        return self._split(with_marks(text, specials, self._marks))

    def finish(self) -> list[Delta]:
        """The output has ended: what is left."""
        found, rest = self._reasoning.finish() if self._reasoning is not None else ("", "")
        return [*self._thought(found), *self._said(rest), *(self._tools.finish() if self._tools is not None else ())]

    def _split(self, text: str) -> list[Delta]:
        if self._reasoning is None:
            return self._said(text)
        found, rest = self._reasoning.feed(text)
        return [*self._thought(found), *self._said(rest)]

    def _thought(self, text: str) -> list[Delta]:
        """Reasoning under both names that clients read: DeepSeek's and today's."""
        return [{"reasoning_content": text, "reasoning": text}] if text and self._show_reasoning else []

    def _said(self, text: str) -> list[Delta]:
        if self._tools is not None:
            return self._tools.feed(text)
        text = shown(text)
        return [{"content": text}] if text else []


def whole(parser: MessageParser, text: str, specials: Sequence[tuple[int, str]] = ()) -> dict[str, Any]:
    """The parts of a message: "content", which is null if there are others only, and those others that there are."""
    parts: dict[str, str] = {}
    calls: list[dict[str, Any]] = []
    for delta in [*parser.feed(text, specials), *parser.finish()]:
        for call in delta.pop("tool_calls", ()):
            if "id" in call:
                calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        for name, piece in delta.items():
            parts[name] = parts.get(name, "") + piece
    others: dict[str, Any] = {**parts, "tool_calls": calls} if calls else {**parts}
    content = others.pop("content", None)
    return {"content": content if content or others else "", **others}
