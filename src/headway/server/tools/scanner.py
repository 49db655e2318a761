"""Reads one tool call, a JSON object with a name and arguments, as its text arrives, character by character.

All that is found depends on the characters read so far and on nothing else, so pieces of a text give what the whole
gives. A call is one from the moment its name is known: that cannot be taken back from a stream.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from headway.server.tools.marks import is_hidden

SPACE = " \t\r\n"
ARGUMENT_KEYS = ("arguments", "parameters")
_UNQUOTED = frozenset("{}[],:+-.0123456789 \t\r\n" + "truefalsenullNaNInfinityE")
"""What JSON has outside of strings."""


class _Broken(Exception):
    """The text does not go on as a call does."""


@dataclass
class Found:
    """What a piece of text brought.

    Attributes:
        name: the function's name, with the piece that completes it.
        arguments: text of the arguments, as the model wrote it; only once the name is known.
        num_chars: characters of the piece that belong to the call.
        broken: whether what follows them does not. With a name, the call ends here; without, it is none.
    """

    name: str | None = None
    arguments: str = ""
    num_chars: int = 0
    broken: bool = False


class CallScanner:
    """The state of one call. Feed it until it is :attr:`done` or broken.

    Arguments are passed on as they are written: neither parsed nor mended, so that a stream of them is the same text
    as a whole. Arguments in front of the name are kept until the name is there; a call without any has ``{}``. Where
    a key is written twice, the first one counts.

    Args:
        names: functions that may be called.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.done = False
        self.name: str | None = None
        self._names = names
        self._state = self._before_object
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._has_arguments = False
        self._is_arguments = False
        """Whether the value being read is the arguments."""
        self._kept: list[str] = []
        """Arguments that were not passed on yet."""

    def feed(self, text: str) -> Found:
        """Take in what comes next."""
        found, known = Found(), self.name
        for char in text:
            if self.done:
                break
            try:
                if is_hidden(char):
                    raise _Broken
                self._state(char)
            except _Broken:
                found.broken = True
                self._without_arguments()
                break
            found.num_chars += 1
        if self.name is not None:
            found.name = None if known is not None else self.name
            found.arguments = "".join(self._kept)
            self._kept.clear()
        return found

    def _before_object(self, char: str) -> None:
        if char == "{":
            self._state = self._before_key
        elif char not in SPACE:
            raise _Broken

    def _before_key(self, char: str) -> None:
        if char == '"':
            self._value, self._state = [char], self._in_key
        elif char == "}":
            self._end()
        elif char not in SPACE:
            raise _Broken

    def _in_key(self, char: str) -> None:
        self._value.append(char)
        if self._closes_string(char):
            self._key = _text("".join(self._value))
            self._state = self._before_colon

    def _before_colon(self, char: str) -> None:
        if char == ":":
            self._state = self._before_value
        elif char not in SPACE:
            raise _Broken

    def _before_value(self, char: str) -> None:
        if char in SPACE:
            return
        if char in ",:}]" or char == "<":
            raise _Broken
        self._value = []
        self._is_arguments = self._key in ARGUMENT_KEYS and not self._has_arguments
        self._has_arguments |= self._is_arguments
        self._state = self._in_text if char == '"' else self._in_nested if char in "{[" else self._in_word
        self._depth = 1 if char in "{[" else 0
        self._keep(char)

    def _in_text(self, char: str) -> None:
        self._keep(char)
        if self._closes_string(char):
            self._end_value()

    def _in_nested(self, char: str) -> None:
        """Inside an object or a list."""
        if not self._in_string:
            self._check_unquoted(char)
        self._keep(char)
        if self._in_string:
            self._in_string = not self._closes_string(char)
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._end_value()

    def _in_word(self, char: str) -> None:
        """Inside a number, or one of the words that JSON knows."""
        if char in SPACE + ",}":
            self._end_value()
            self._after_value(char)
        else:
            self._check_unquoted(char)
            self._keep(char)

    def _check_unquoted(self, char: str) -> None:
        """Tell JSON from what is none, so that marks in it are found: strictly as long as nothing was passed on; then
        clients get what is written, but for what may begin a mark."""
        if char == "<" or (self.name is None and char != '"' and char not in _UNQUOTED):
            raise _Broken

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._state = self._before_key
        elif char == "}":
            self._end()
        elif char not in SPACE:
            raise _Broken

    def _closes_string(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        else:
            return char == '"'
        return False

    def _keep(self, char: str) -> None:
        """Collect a value's character, if it is a value that matters."""
        if self._is_arguments:
            self._kept.append(char)
        elif self._key == "name" and self.name is None:
            self._value.append(char)

    def _end_value(self) -> None:
        self._state = self._after_value
        if self._key == "name" and self.name is None:
            name = _text("".join(self._value))
            if name not in self._names:
                raise _Broken
            self.name = name

    def _end(self) -> None:
        if self.name is None:
            raise _Broken
        self._without_arguments()
        self.done = True

    def _without_arguments(self) -> None:
        """The call ends: if nothing was said of arguments, there are none."""
        if not self._has_arguments:
            self._has_arguments = True
            self._kept.append("{}")


def _text(quoted: str) -> str:
    """A JSON string's value."""
    try:
        value = json.loads(quoted)
    except ValueError as error:
        raise _Broken from error
    if not isinstance(value, str):
        raise _Broken
    return value
