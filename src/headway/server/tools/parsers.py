"""Finds tool calls in the text of one output, whole or piece by piece, with the same result."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from headway.server.tools.scanner import SPACE, CallScanner, Found, NoCall

Delta = dict[str, Any]
"""What OpenAI's streams have in "delta": a piece of "content", or of "tool_calls"."""


class ToolParser(ABC):
    """Splits an output into content and calls.

    A call is one only if its function is among ``names``; what turns out to be none is content, unchanged. Between
    and around calls, white space is dropped; an output without calls is passed on as it is.

    Args:
        names: functions that may be called.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._pending = ""
        """Text outside of calls that cannot be told yet."""
        self._space = ""
        """White space that is content if content follows."""
        self._scanner: CallScanner | None = None
        self._mark = self._raw = ""
        """The mark of the call being read, and what came after it, as it may still turn out to be none."""
        self._named = False
        self._deltas: list[Delta] = []
        self.num_calls = 0
        """Calls found so far."""

    def feed(self, text: str) -> list[Delta]:
        """Take in what comes next of the output."""
        self._pending += text
        while self._read_call() if self._scanner is not None else self._find_call():
            pass
        return self._take()

    def finish(self) -> list[Delta]:
        """The output has ended: what is left."""
        if self._scanner is not None and self._named:
            self._pending = ""  # the call's, or a part of its closing mark
        elif self._scanner is not None:
            self._give_up()
        self._content(self._pending)
        if not self.num_calls:
            self._emit(self._space)
        self._pending = self._space = ""
        return self._take()

    @abstractmethod
    def _find_call(self) -> bool:
        """Pass on content up to where a call begins, and begin it; ``False`` if more text is needed to go on."""

    def _end_call(self) -> bool:
        """A call's object has ended: take what belongs to it; ``False`` if more text is needed to tell."""
        self._scanner = None
        return True

    def _begin_call(self, mark: str) -> None:
        """A call begins after ``mark``, which ``_pending`` begins with."""
        self._pending = self._pending[len(mark) :]
        self._scanner, self._mark, self._raw, self._named = CallScanner(), mark, "", False

    def _read_call(self) -> bool:
        scanner = self._scanner
        if scanner is None or scanner.done:
            return self._end_call()
        if not self._pending:
            return False
        try:
            found = scanner.feed(self._pending)
            if found.name is not None and found.name not in self._names:
                raise NoCall
        except NoCall:
            if self._named:  # it was announced, so it ends here
                self._scanner = None
            else:
                self._give_up()
            return True
        self._raw += self._pending[: found.num_chars]
        self._pending = self._pending[found.num_chars :]
        self._announce(found)
        return True

    def _announce(self, found: Found) -> None:
        if found.name is not None:
            self._named, self._space = True, ""
            self.num_calls += 1
            call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
            self._call({**call, "function": {"name": found.name, "arguments": found.arguments}})
        elif found.arguments:
            self._call({"function": {"arguments": found.arguments}})

    def _call(self, call: dict[str, Any]) -> None:
        self._deltas.append({"tool_calls": [{"index": self.num_calls - 1, **call}]})

    def _give_up(self) -> None:
        """What was being read is no call: its mark is content, and the rest is looked through again."""
        mark, self._pending = self._mark, self._raw + self._pending
        self._scanner, self._raw = None, ""
        self._content(mark)

    def _content(self, text: str) -> None:
        """Pass on content; white space at its end waits for more."""
        if not text:
            return
        kept = text.rstrip(SPACE)
        if not kept:
            self._space += text
            return
        self._emit(self._space + kept)
        self._space = text[len(kept) :]

    def _emit(self, text: str) -> None:
        if text:
            self._deltas.append({"content": text})

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas


class HermesParser(ToolParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number, anywhere; Qwen writes so too."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def _find_call(self) -> bool:
        place = self._pending.find(self.OPEN)
        if place >= 0:
            self._content(self._pending[:place])
            self._pending = self._pending[place:]
            self._begin_call(self.OPEN)
            return True
        place = _begun(self._pending, self.OPEN)
        self._content(self._pending[:place])
        self._pending = self._pending[place:]
        return False

    def _end_call(self) -> bool:
        rest = self._pending.lstrip(SPACE)
        if len(rest) < len(self.CLOSE) and self.CLOSE.startswith(rest):
            return False
        self._pending = rest.removeprefix(self.CLOSE)
        return super()._end_call()


class LlamaJsonParser(ToolParser):
    """``{"name": ..., "parameters": {...}}`` and nothing else, several with semicolons between; Llama 3 writes so."""

    MARK = "<|python_tag|>"

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._is_text = False

    def _find_call(self) -> bool:
        if self._is_text:
            self._content(self._pending)
            self._pending = ""
            return False
        rest = self._pending.lstrip(SPACE + ";" if self.num_calls else SPACE)
        if self.num_calls:
            self._pending = rest
        if not rest or (len(rest) < len(self.MARK) and self.MARK.startswith(rest)):
            return False
        mark = self.MARK if rest.startswith(self.MARK) else ""
        if not mark and not rest.startswith("{"):
            self._is_text = True
            return True
        self._content(self._pending[: len(self._pending) - len(rest)])
        self._pending = rest
        self._begin_call(mark)
        return True

    def _give_up(self) -> None:
        self._is_text = True
        super()._give_up()


def whole(parser: ToolParser, text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Content and calls of a whole output, as a message has them: with calls, there may be no content."""
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    for delta in [*parser.feed(text), *parser.finish()]:
        if "content" in delta:
            content.append(delta["content"])
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return "".join(content) or (None if calls else ""), calls


def _begun(text: str, mark: str) -> int:
    """Where ``text`` ends in the beginning of ``mark``; its length if it does not."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[len(text) - length :]):
            return len(text) - length
    return len(text)
