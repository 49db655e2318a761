"""Reads one tool call, a JSON object with a name and arguments, as its text arrives, character by character."""

from __future__ import annotations

import json
from dataclasses import dataclass

SPACE = " \t\r\n"
ARGUMENT_KEYS = ("arguments", "parameters")


class NoCall(Exception):
    """The text is not a tool call."""


@dataclass
class Found:
    """What a piece of text brought.

    Attributes:
        name: the function's name, with the piece that completes it.
        arguments: text of the arguments, as the model wrote it; only once the name is known.
        num_chars: characters of the piece that belong to the call.
    """

    name: str | None = None
    arguments: str = ""
    num_chars: int = 0


class CallScanner:
    """The state of one call. Feed it until :attr:`done`.

    Arguments are passed on as they are written: neither parsed nor mended, so that a stream of them is the same text
    as a whole. Arguments in front of the name are kept until the name is there; a call without any has ``{}``.
    """

    def __init__(self) -> None:
        self.done = False
        self._state = self._before_object
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._name: str | None = None
        self._has_arguments = False
        self._kept: list[str] = []
        """Arguments that were not passed on yet."""

    def feed(self, text: str) -> Found:
        """Take in what comes next.

        Raises:
            NoCall: this is not, or no longer, the text of a call.
        """
        found, known = Found(), self._name
        for char in text:
            if self.done:
                break
            found.num_chars += 1
            self._state(char)
        if self._name is not None:
            found.name = None if known is not None else self._name
            found.arguments = "".join(self._kept)
            self._kept.clear()
        return found

    def _before_object(self, char: str) -> None:
        if char == "{":
            self._state = self._before_key
        elif char not in SPACE:
            raise NoCall

    def _before_key(self, char: str) -> None:
        if char == '"':
            self._value, self._state = [char], self._in_key
        elif char == "}":
            self._end()
        elif char not in SPACE:
            raise NoCall

    def _in_key(self, char: str) -> None:
        self._value.append(char)
        if self._closes_string(char):
            self._key = _text("".join(self._value))
            self._state = self._before_colon

    def _before_colon(self, char: str) -> None:
        if char == ":":
            self._state = self._before_value
        elif char not in SPACE:
            raise NoCall

    def _before_value(self, char: str) -> None:
        if char in SPACE:
            return
        if char in ",:}]":
            raise NoCall
        self._value, self._depth = [], 0
        self._has_arguments = self._has_arguments or self._key in ARGUMENT_KEYS
        self._state = self._in_text if char == '"' else self._in_nested if char in "{[" else self._in_word
        self._depth = 1 if char in "{[" else 0
        self._keep(char)

    def _in_text(self, char: str) -> None:
        self._keep(char)
        if self._closes_string(char):
            self._end_value()

    def _in_nested(self, char: str) -> None:
        """Inside an object or a list."""
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
            self._keep(char)

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._state = self._before_key
        elif char == "}":
            self._end()
        elif char not in SPACE:
            raise NoCall

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
        if self._key in ARGUMENT_KEYS:
            self._kept.append(char)
        elif self._key == "name":
            self._value.append(char)

    def _end_value(self) -> None:
        self._state = self._after_value
        if self._key == "name":
            self._name = _text("".join(self._value))

    def _end(self) -> None:
        if self._name is None:
            raise NoCall
        if not self._has_arguments:
            self._kept.append("{}")
        self.done = True


def _text(quoted: str) -> str:
    """A JSON string's value."""
    try:
        value = json.loads(quoted)
    except ValueError as error:
        raise NoCall from error
    if not isinstance(value, str):
        raise NoCall
    return value
