"""Finds tool calls in the text of one output, whole or piece by piece, with the same result."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from headway.server.tools.marks import Mark, num_told, shown
from headway.server.tools.scanner import SPACE, CallScanner, Found

Delta = dict[str, Any]
"""What OpenAI's streams have in "delta": a piece of "content", or of "tool_calls"."""


class ToolParser(ABC):
    """Splits an output into content and calls.

    A call is one from the moment its name is known, if that is among ``names``; what turns out to be none is content,
    unchanged. Between and around calls, white space is dropped; an output without calls is passed on as it is.

    Args:
        names: functions that may be called.

    Attributes:
        marks: to be told from other text; special tokens of these texts come as their hidden characters.
    """

    marks: tuple[Mark, ...] = ()

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._pending = ""
        """Text outside of calls that cannot be told yet."""
        self._space = ""
        """White space that is content if content follows."""
        self._scanner: CallScanner | None = None
        self._ended = False
        """Whether the object of the call being read has ended, so that only its closing mark is missing."""
        self._mark = self._raw = ""
        """The mark of the call being read, and what came after it, as it may still turn out to be none."""
        self._deltas: list[Delta] = []
        self.num_calls = 0
        """Calls found so far."""

    def feed(self, text: str) -> list[Delta]:
        """Take in what comes next of the output."""
        self._pending += text
        self._go_on()
        return self._take()

    def finish(self) -> list[Delta]:
        """The output has ended: what is left."""
        while self._scanner is not None and self._scanner.name is None:
            self._give_up()
            self._go_on()
        if self._scanner is not None and not self._ended:
            self._pending = ""  # the call's
        self._end_output()
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

    def _end_output(self) -> None:
        """The output has ended: what could not be told yet is content."""
        self._content(self._pending)

    def _go_on(self) -> None:
        while self._read_call() if self._scanner is not None else self._find_call():
            pass

    def _begin_call(self, mark: str) -> None:
        """A call begins after ``mark``, which ``_pending`` begins with."""
        self._pending = self._pending[len(mark) :]
        self._scanner, self._mark, self._raw, self._ended = CallScanner(self._names), mark, "", False

    def _read_call(self) -> bool:
        scanner = self._scanner
        if scanner is None or self._ended:
            return self._end_call()
        if not self._pending:
            return False
        found = scanner.feed(self._pending)
        if scanner.name is None:
            self._raw += self._pending[: found.num_chars]
        self._pending = self._pending[found.num_chars :]
        self._announce(found)
        if found.broken and scanner.name is None:
            self._give_up()
        else:
            self._ended = scanner.done or found.broken
        return True

    def _announce(self, found: Found) -> None:
        if found.name is not None:
            self._space = ""
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
        text = shown(text)
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
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number, anywhere; Qwen writes so too.

    What stands between the end of a call's object and its closing mark goes with the call, such as a brace too many;
    if there is no closing mark before the next call or the end, it is content.
    """

    OPEN, CLOSE = Mark("<tool_call>"), Mark("</tool_call>")
    marks = (OPEN, CLOSE)
    _OPENING = re.compile(OPEN.pattern)
    _EITHER = re.compile(f"{OPEN.pattern}|{CLOSE.pattern}")

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._num_searched = 0
        """Characters of ``_pending`` that no closing mark begins in."""

    def _find_call(self) -> bool:
        found = self._OPENING.search(self._pending)
        place = found.start() if found else num_told(self._pending, (self.OPEN,))
        self._content(self._pending[:place])
        self._pending = self._pending[place:]
        if found:
            self._begin_call(found[0])
        return found is not None

    def _end_call(self) -> bool:
        found = self._EITHER.search(self._pending, self._num_searched)
        if not found:
            self._num_searched = max(0, len(self._pending) - len(self.CLOSE.text))
            return False
        if found[0] in (self.CLOSE.text, self.CLOSE.hidden):
            self._pending = self._pending[found.end() :]
        else:
            self._pending = self._pending.lstrip(SPACE)
        self._num_searched = 0
        return super()._end_call()

    def _end_output(self) -> None:
        if self._ended and self._scanner is not None:
            rest = self._pending.strip(SPACE)
            self._pending = rest if num_told(rest, (self.CLOSE,)) == len(rest) else ""  # its closing mark had begun
        super()._end_output()


class LlamaJsonParser(ToolParser):
    """``{"name": ..., "parameters": {...}}`` and nothing else, several with semicolons between; Llama 3 writes so."""

    MARK = Mark("<|python_tag|>")
    marks = (MARK,)

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
        if not rest or self.MARK.may_begin(rest):
            return False
        mark = self.MARK.begins(rest)
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
