"""Messages with reasoning, content and calls, however broken: streams and whole answers tell the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import SamplingParams
from headway.engine.outputs import CompletionOutput, RequestOutput, RequestUpdate
from headway.server.answers.chat import ChatAnswer
from headway.server.reasoning import FORMATS, ReasoningFormat, find_reasoning
from headway.server.spec import CallSpec
from headway.server.tools.dialects import DIALECTS, Dialect
from tests.server.test_tool_fuzz import ARGUMENTS, NAMES, broken_outputs

Token = tuple[str, bool]
"""What a token adds to an output, and whether it is a special token, which adds nothing."""


def tokens_of(dialect: Dialect, known: ReasoningFormat) -> st.SearchStrategy[list[Token]]:
    """Outputs whose marks are special tokens, text, or text in two tokens."""
    texts = [mark.text for mark in (*dialect.parser.marks, *known.marks)]
    marks = st.sampled_from(texts)
    calls = ARGUMENTS.map(lambda arguments: f'{{"name": "add", "{dialect.arguments}": {arguments}}}')
    words = st.sampled_from(["Well", " ", "\n", ".", "<", "</", "think", "{", '"', "}", "; "])
    token = st.one_of(
        st.tuples(marks, st.booleans()),
        st.tuples(st.one_of(words, calls, broken_outputs(dialect, special=False)), st.just(False)),
        st.just(("<|other|>", True)),
    )
    begin = st.sampled_from([[], [(known.opening.text, True)], [(known.opening.text, False)], [("\n", False)]])
    return st.tuples(begin, st.lists(token, max_size=6)).map(lambda parts: [*parts[0], *parts[1]])


def output_of(tokens: Sequence[Token], finish_reason: str) -> RequestOutput:
    text, specials = text_of(tokens)
    completion = CompletionOutput(text, (), finish_reason, specials=specials)
    return RequestOutput("a", None, (), (completion,))


def text_of(tokens: Sequence[Token]) -> tuple[str, tuple[tuple[int, str], ...]]:
    text, specials = "", []
    for piece, is_special in tokens:
        if is_special:
            specials.append((len(text), piece))
        else:
            text += piece
    return text, tuple(specials)


def answer_of(dialect: Dialect, known: ReasoningFormat | None, *, is_open: bool) -> ChatAnswer:
    spec = CallSpec((), "messages", SamplingParams(), make_tool_parser=lambda: dialect.parser(NAMES), reasoning=known)
    answer = ChatAnswer(spec, "id", "model", lambda token: b"", frozenset())
    answer.set_prompts((), (), reasoning_is_open=is_open)
    return answer


def whole(answer: ChatAnswer, output: RequestOutput) -> tuple[Any, ...]:
    choice = answer.choice(0, output)
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    reasoning = message.get("reasoning_content", "")
    assert message.get("reasoning", "") == reasoning
    assert message["content"] is not None or calls or reasoning
    return message["content"] or "", reasoning, calls, choice["finish_reason"]


def streamed(answer: ChatAnswer, updates: Sequence[RequestUpdate]) -> tuple[Any, ...]:
    content, reasoning, reason, calls = "", "", None, []
    for choice in (choice for update in updates for choice in answer.choices_of(0, update)):
        delta = choice["delta"]
        content += delta.get("content", "")
        reasoning += delta.get("reasoning_content", "")
        assert delta.get("reasoning", "") == delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append((call["function"]["name"], ""))
            calls[call["index"]] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
        assert reason is None
        reason = choice["finish_reason"]
    return content, reasoning, calls, reason


def pieces_of(tokens: Sequence[Token], cuts: Sequence[int], output: RequestOutput) -> list[RequestUpdate]:
    """The output as a stream brings it: by tokens, several at once or a part of one's text."""
    small: list[Token] = []
    for (text, is_special), cut in zip(tokens, cuts, strict=False):
        place = 0 if is_special else cut % (len(text) + 1)
        small += [(text[:place], False), (text[place:], is_special)] if place else [(text, is_special)]
    small += tokens[len(cuts) :]
    updates = []
    while small:
        size = 1 + (cuts[len(updates) % len(cuts)] % 3 if cuts else 0)
        text, specials = text_of(small[:size])
        updates.append(RequestUpdate("a", text, (), specials=specials))
        small = small[size:]
    return [*updates, RequestUpdate("a", "", (), output=output)]


@pytest.mark.parametrize("known", [None, *FORMATS], ids=lambda known: known.name if known else "none")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans(), st.sampled_from(["stop", "length"]), st.lists(st.integers(0, 99), max_size=9))
def test_streams_and_whole_answers_tell_the_same(
    dialect: Dialect, known: ReasoningFormat | None, data: st.DataObject, is_open: bool, finish: str, cuts: list[int]
) -> None:
    tokens = data.draw(tokens_of(dialect, known or FORMATS[0]))
    output = output_of(tokens, finish)
    expected = whole(answer_of(dialect, known, is_open=is_open), output)
    one_by_one = [(part, is_special) for text, is_special in tokens for part in ([text] if is_special else list(text))]

    assert not any("\ud800" <= char <= "\udfff" for part in expected for char in str(part))
    assert (expected[3] == "tool_calls") is bool(expected[2] and finish == "stop")
    for parts, sizes in ((tokens, cuts), (tokens, []), (one_by_one, [])):
        updates = pieces_of(parts, sizes, output)
        assert streamed(answer_of(dialect, known, is_open=is_open), updates) == expected


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_a_format_is_found_by_the_template_or_chosen(known: ReasoningFormat) -> None:
    template = f"{{{{ message.content.split('{known.closing.text}') }}}}"

    assert find_reasoning(template, "auto") is known
    assert find_reasoning("", "auto") is None
    assert find_reasoning("", known.name) is known
    assert find_reasoning(template, "none") is None
