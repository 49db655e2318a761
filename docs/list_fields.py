"""Writes the tables of request fields in docs/server.md from ``server/protocol/fields.py``; run by ``make docs``."""

from __future__ import annotations

from pathlib import Path

from headway.server.protocol.fields import OBJECTS, Field, Use

TARGET = Path(__file__).with_name("server.md")
BEGIN = "<!-- fields: written by `make docs` from server/protocol/fields.py -->\n"
END = "<!-- end of fields -->\n"
HEADINGS = {
    "generation": "Of both generation endpoints",
    "completion": "Of `/v1/completions`",
    "chat": "Of `/v1/chat/completions`",
    "thinking": "Of `thinking`",
    "stream_options": "Of `stream_options`",
    "response_format": "Of `response_format`",
    "json_schema": "Of `response_format.json_schema`",
    "structured_outputs": "Of `structured_outputs`, of which one is given",
    "message": "Of a message; any other field is passed over",
    "tool_call": "Of a call in a message; any other field is passed over",
    "called_function": "Of `function` in a call",
    "part": "Of a part of a message's content",
    "tool": "Of a tool",
    "function": "Of a tool's function",
    "tool_choice": "Of `tool_choice`, if it is an object",
    "allowed_tools": "Of `tool_choice.allowed_tools`",
    "function_name": "Of `tool_choice.function`",
}


def meaning(field: Field) -> str:
    """What a reader has to know of a field."""
    if field.use is Use.USED:
        others = f'; others are refused: "{field.otherwise.format(value="...")}"' if field.otherwise else ""
        return field.text + others
    if field.use is Use.ALIAS:
        return field.text
    neutral = ", ".join(f"`{value!r}`" for value in field.neutral)
    taken = f" (taken: {neutral})" if neutral else ""
    return f"{field.use}: {field.text}{taken}"


def table(kind: str) -> list[str]:
    """One object; fields that share everything but their names share a line, those that are used come first."""
    lines: dict[tuple[str, str], list[str]] = {}
    for field in sorted(OBJECTS[kind], key=lambda field: list(Use).index(field.use)):
        lines.setdefault((field.source, meaning(field)), []).append(f"`{field.name}`")
    rows = [f"| {', '.join(names)} | {source} | {text} |" for (source, text), names in lines.items()]
    return [f"{HEADINGS[kind]}:", "", "| Field | From | Meaning |", "|---|---|---|", *rows, ""]


def render() -> str:
    """The document, with its tables written anew."""
    before, _, rest = TARGET.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(line for kind in OBJECTS for line in table(kind)) + "\n" + END + after


if __name__ == "__main__":
    TARGET.write_text(render())
