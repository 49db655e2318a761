"""Tool calls are found in outputs, and the pieces of a stream join to what the whole output has, wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.server.message_parser import MessageParser
from headway.server.message_parser import whole as whole_message
from headway.server.tools.dialects import DIALECTS, HERMES, LLAMA3_JSON, Dialect, find_dialect, knows_tools
from headway.server.tools.parsers import HermesParser, LlamaJsonParser, ToolParser

NAMES = ("add", "look_up")
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>'
LOOK = '<tool_call>{"arguments": {"q": "</tool_call> \\" {"}, "name": "look_up"}</tool_call>'
ADD_ARGUMENTS, LOOK_ARGUMENTS = '{"a": 1, "b": [2, "}"]}', '{"q": "</tool_call> \\" {"}'

HERMES_CASES: dict[str, tuple[str | None, list[tuple[str, str]]]] = {
    "": ("", []),
    " just text \n": (" just text \n", []),
    ADD: (None, [("add", ADD_ARGUMENTS)]),
    f"{ADD}\n{LOOK}": (None, [("add", ADD_ARGUMENTS), ("look_up", LOOK_ARGUMENTS)]),
    f"Let me see.\n\n{ADD} Done. ": ("Let me see. Done.", [("add", ADD_ARGUMENTS)]),
    '<tool_call>{"name": "add"}</tool_call>': (None, [("add", "{}")]),
    '<tool_call>{"name": "add", "x": [{}, "]"], "arguments": null}</tool_call>': (None, [("add", "null")]),
    '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>': (None, [("add", '"{\\"a\\": 1}"')]),
    '<tool_call>{"name": "add", "arguments": {"a": ': (None, [("add", '{"a": ')]),
    '<tool_call>{"name": "add", "arguments": {}}</tool': (None, [("add", "{}")]),
    '<tool_call>{"name": "add", "arguments": {}} and': ("and", [("add", "{}")]),
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>': (
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', [],
    ),
    "<tool_call>no JSON</tool_call>": ("<tool_call>no JSON</tool_call>", []),
    "<tool_call>[1]</tool_call>": ("<tool_call>[1]</tool_call>", []),
    '<tool_call>{"arguments": {}}</tool_call>': ('<tool_call>{"arguments": {}}</tool_call>', []),
    '<tool_call>{"name": 5}': ('<tool_call>{"name": 5}', []),
    '<tool_call>{"name" "add"}': ('<tool_call>{"name" "add"}', []),
    f'<tool_call>{{"name": <{ADD}': ('<tool_call>{"name": <', [("add", ADD_ARGUMENTS)]),
    "a <tool <tool_cal": ("a <tool <tool_cal", []),
    f"<tool_call>{ADD}": ("<tool_call>", [("add", ADD_ARGUMENTS)]),
    '<tool_call>{"name": "add", "arguments": {"a": 1}, "more": "': (None, [("add", '{"a": 1}')]),
}  # fmt: skip
CALL = '{"name": "add", "parameters": {"a": "x; y"}}'
LLAMA_CASES: dict[str, tuple[str | None, list[tuple[str, str]]]] = {
    CALL: (None, [("add", '{"a": "x; y"}')]),
    f"<|python_tag|>{CALL}": (None, [("add", '{"a": "x; y"}')]),
    f"\n{CALL}; {CALL};": (None, [("add", '{"a": "x; y"}')] * 2),
    "Well, {} is JSON": ("Well, {} is JSON", []),
    ' {"name": "else", "parameters": {}}': (' {"name": "else", "parameters": {}}', []),
    '{"answer": 5}': ('{"answer": 5}', []),
    f"{CALL} and that was it": ("and that was it", [("add", '{"a": "x; y"}')]),
    f"text first {CALL}": (f"text first {CALL}", []),
    "<|python": ("<|python", []),
}
CASES = [(HermesParser, *case) for case in HERMES_CASES.items()] + [
    (LlamaJsonParser, *case) for case in LLAMA_CASES.items()
]


def whole(parser: ToolParser, text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Content and calls of a whole output."""
    message = whole_message(MessageParser((), None, parser), text)
    return message["content"], message.get("tool_calls", [])


def in_pieces(parser: ToolParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """What a client makes of a stream."""
    content = ""
    calls: list[dict[str, Any]] = []
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    for delta in deltas:
        content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                assert call["id"].startswith("call_") and call["type"] == "function"
                calls.append({"name": call["function"]["name"], "arguments": ""})
            assert call["index"] == len(calls) - 1
            calls[-1]["arguments"] += call["function"]["arguments"]
    return content, [(call["name"], call["arguments"]) for call in calls]


@pytest.mark.parametrize(("parser", "text", "expected"), CASES, ids=repr)
def test_calls_are_found(parser: type[ToolParser], text: str, expected: tuple[str | None, list[Any]]) -> None:
    content, calls = whole(parser(NAMES), text)

    assert (content, [(call["function"]["name"], call["function"]["arguments"]) for call in calls]) == expected
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.parametrize(("parser", "text", "expected"), CASES, ids=repr)
def test_pieces_join_to_the_whole(parser: type[ToolParser], text: str, expected: tuple[str | None, list[Any]]) -> None:
    content, calls = expected

    assert in_pieces(parser(NAMES), list(text)) == (content or "", calls)
    for cut in range(len(text)):
        assert in_pieces(parser(NAMES), [text[:cut], text[cut:]]) == (content or "", calls)


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    '"name"',
    '"add"',
    ":",
    ",",
    '"arguments"',
    " ",
    "\n",
    "1",
    "\\",
    ";",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20), st.randoms(use_true_random=False))
def test_any_text_gives_the_same_in_any_pieces(fragments: list[str], random: Any) -> None:
    text = "".join(fragments)
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(3))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for parser in (HermesParser, LlamaJsonParser):
        assert in_pieces(parser(NAMES), pieces) == in_pieces(parser(NAMES), [text])


def test_content_and_arguments_are_passed_on_at_once() -> None:
    parser = HermesParser(NAMES)

    assert parser.feed("Well") == [{"content": "Well"}]
    assert parser.feed(" <") == []
    assert parser.feed("5") == [{"content": " <5"}]
    [first] = parser.feed('<tool_call>{"name": "add", ')
    assert first["tool_calls"][0]["function"] == {"name": "add", "arguments": ""}
    assert parser.feed('"arguments": {"a"') == [{"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}]


@pytest.mark.parametrize(
    ("template", "choice", "expected"),
    [
        ("... <tool_call> ... tools", "auto", HERMES),
        ("{{ '<|python_tag|>' }}", "auto", LLAMA3_JSON),
        ("[TOOL_CALLS] tools", "auto", None),
        ("[TOOL_CALLS] tools", "hermes", HERMES),
        ("<tool_call>", "llama3_json", LLAMA3_JSON),
    ],
)
def test_a_dialect_is_found_by_the_template_or_chosen(template: str, choice: str, expected: Dialect | None) -> None:
    assert find_dialect(template, choice) is expected
    assert knows_tools(template) is ("tools" in template)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_a_dialect_has_written_its_parser_reads(dialect: Dialect) -> None:
    body = json.dumps({"name": "add", dialect.arguments: {"a": 1}})
    call = "".join(str(getattr(part, "text", part)) for part in (*dialect.opening, body, *dialect.closing))
    content, calls = whole(dialect.parser(NAMES), dialect.separator.join([call, call]))

    assert content is None
    assert [call["function"] for call in calls] == [{"name": "add", "arguments": '{"a": 1}'}] * 2
