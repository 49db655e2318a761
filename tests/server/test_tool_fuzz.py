"""Broken calls of every dialect: a stream has what the whole answer has, wherever it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.server.tools.dialects import DIALECTS, HERMES, Dialect
from headway.server.tools.marks import Mark, is_hidden, with_marks
from headway.server.tools.parsers import ToolParser
from headway.server.tools.scanner import CallScanner, Found
from tests.server.test_tool_parsers import in_pieces, whole

NAMES = ("add", "weather")


def written(parts: Sequence[Mark | str], *, special: bool) -> str:
    """Marks and texts as a parser gets them."""
    return "".join((part.hidden if special else part.text) if isinstance(part, Mark) else part for part in parts)


def call_of(dialect: Dialect, name: str, arguments: str, *, special: bool) -> str:
    body = f'{{"name": {json.dumps(name)}, "{dialect.arguments}": {arguments}}}'
    return written((*dialect.opening, body, *dialect.closing), special=special)


ARGUMENTS = st.sampled_from(
    ['{"city": "Oslo"}', "{}", '{"a": {"b": [1, "}"]}}', "null", '"x"', "[1]", '{"q": "</tool_call>"}', "{'a': True}"]
)
WORDS = ["{", "}", '"', "\\", ",", ":", " ", "\n", ";", "<", "é", '"name"', '"add"', "<tool_call>", "</tool_call>", "x"]


@st.composite
def broken_outputs(draw: st.DrawFn, dialect: Dialect, *, special: bool = True) -> str:
    """Calls and text between them, with a few characters taken out, put in, doubled or moved."""
    special = special and draw(st.booleans())
    parts = draw(
        st.lists(
            st.one_of(
                st.builds(
                    lambda name, arguments: call_of(dialect, name, arguments, special=special),
                    st.sampled_from([*NAMES, "unknown"]),
                    ARGUMENTS,
                ),
                st.sampled_from(["Well. ", "\n", "", "; ", *(mark.text for mark in dialect.parser.marks)]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    text = dialect.separator.join(parts)
    words = [*WORDS, *(mark.hidden for mark in dialect.parser.marks if special)]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 4)))
        text = text[:start] + draw(st.sampled_from(["", *words])) + text[end:]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


def cuts(text: str, random_cuts: Sequence[int]) -> Iterator[list[str]]:
    """The text in pieces: one each, two in all places, and some."""
    yield list(text)
    for cut in range(len(text)):
        yield [text[:cut], text[cut:]]
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in random_cuts)})
    yield [text[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.integers(0, 500), max_size=6))
def test_a_stream_has_what_the_whole_has(dialect: Dialect, data: st.DataObject, random_cuts: list[int]) -> None:
    text = data.draw(broken_outputs(dialect))
    content, calls = whole(dialect.parser(NAMES), text)
    expected = content or "", [(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    assert not any(map(is_hidden, str(expected)))
    for pieces in cuts(text, random_cuts):
        assert in_pieces(dialect.parser(NAMES), pieces) == expected


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_text_without_calls_is_left_alone(dialect: Dialect, data: st.DataObject) -> None:
    text = data.draw(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
    content, calls = whole(dialect.parser(()), text)

    assert (content, calls) == (text, [])


CUT = '{"name": "weather", "arguments": {"city": "Oslo"'
BROKEN: dict[str, tuple[str, list[tuple[str, str]]]] = {
    f"<tool_call>{CUT}}}\n</tool_call>": ("", [("weather", '{"city": "Oslo"}')]),
    f"<tool_call>{CUT}}}</tool_call>After.": ("After.", [("weather", '{"city": "Oslo"}')]),
    f"<tool_call>{CUT}</tool_call>": ("", [("weather", '{"city": "Oslo"')]),
    f"<tool_call>{CUT}}}}}}}</tool_call>": ("", [("weather", '{"city": "Oslo"}')]),
    f"<tool_call>{CUT}}}}} or so</tool_call> After.": (" After.", [("weather", '{"city": "Oslo"}')]),
    f"<tool_call>{CUT}}}}}\n</tool": ("", [("weather", '{"city": "Oslo"}')]),
    f'<tool_call>{CUT}}}}}\nOr <tool_call>{{"name": "add"}}</tool_call>': (
        "Or",
        [("weather", '{"city": "Oslo"}'), ("add", "{}")],
    ),
    '<tool_call>{"name": "add"</tool_call>': ("", [("add", "{}")]),
    '<tool_call>{"name": "add", "name": "weather", "arguments": {}}</tool_call>': ("", [("add", "{}")]),
    '<tool_call>{"arguments": {"a": 1}, "name": "add", "parameters": {}}</tool_call>': ("", [("add", '{"a": 1}')]),
    '<tool_call>{"name": "add", "arguments": {\'a\': True}}</tool_call>': ("", [("add", "{'a': True}")]),
    '<tool_call>{"k": [<tool_call>{"name": "add"}</tool_call>': ('<tool_call>{"k": [', [("add", "{}")]),
    '<tool_call>{"k": "<tool_call>{\'name\'}</tool_call>': ('<tool_call>{"k": "<tool_call>{\'name\'}</tool_call>', []),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.items(), ids=BROKEN)
def test_broken_calls(text: str, expected: Any) -> None:
    for pieces in ([text], list(text)):
        content, calls = in_pieces(HERMES.parser(NAMES), pieces)
        assert (content.rstrip(), calls) == expected


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_marks_that_are_special_tokens_are_found(dialect: Dialect) -> None:
    """Their text is not in the output, only where they stood."""
    marks: tuple[Mark, ...] = dialect.parser.marks
    body = f'{{"name": "add", "{dialect.arguments}": {{"a": "<x>"}}}}'
    specials = [(0, marks[0].text), (len(body), "<|other|>"), (len(body), marks[-1].text), (len(body) + 1, "<|end|>")]
    text = with_marks(f"{body}\n", specials if len(marks) > 1 else specials[:1], marks)

    assert whole(dialect.parser(NAMES), text)[1][0]["function"] == {"name": "add", "arguments": '{"a": "<x>"}'}
    assert in_pieces(dialect.parser(NAMES), list(text)) == ("", [("add", '{"a": "<x>"}')])


def test_special_tokens_that_are_no_call_leave_nothing() -> None:
    parser: ToolParser = HERMES.parser(NAMES)
    text = with_marks("no call", [(0, "<tool_call>"), (2, "</tool_call>")], parser.marks)

    assert whole(parser, text) == ("no call", [])


@pytest.mark.parametrize(
    "piece", ["<tool_call>", '<tool_call>{"k":[', '<tool_call>{"k":"', "<tool_call>{ ", "<tool", "; {"]
)
def test_hostile_outputs_are_not_read_again_and_again(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What turns out to be no call is looked through again, which must not add up."""
    num_read = 0
    feed = CallScanner.feed

    def counted(scanner: CallScanner, text: str) -> Found:
        nonlocal num_read
        found = feed(scanner, text)
        num_read += found.num_chars
        return found

    monkeypatch.setattr(CallScanner, "feed", counted)
    for dialect in DIALECTS:
        whole(dialect.parser(NAMES), piece * 2000)
    assert num_read <= 4 * 2000 * len(piece)
