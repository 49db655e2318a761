"""Reasoning over HTTP: told apart in messages and streams, counted, never a call, and in front of forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.builders import ScriptedExecutor
from tests.server.running import Running, serving
from tests.server.templates import TemplateTokenizer
from tests.server.tiny_chat import tiny_chat

ASK: list[Any] = [{"role": "user", "content": "Is <think> a tag?"}]
ADD: Any = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
LIMITS: dict[str, Any] = {"max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 512}
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|end|>")

THINKS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{# <tool_call> #}{% for message in messages %}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
)
OPENS = THINKS + "<think>\n"
SWITCHES = THINKS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


class Model:
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.says = ""
        self.prompt = ""
        self.tokenizer: TemplateTokenizer | None = None

    def __call__(self, request_id: str, prompt: list[int]) -> list[int]:
        assert self.tokenizer is not None
        self.prompt = self.tokenizer.decode(prompt, skip_special_tokens=False)
        return self.tokenizer.encode(self.says)


@contextmanager
def thinker(template: str, *, tokens: str = "special", **options: Any) -> Iterator[tuple[Running, Model]]:
    """A server whose model reasons; its marks are special tokens, added tokens, or text."""
    model = Model()
    pieces = MARKS if tokens != "text" else ()
    model.tokenizer = TemplateTokenizer(template, pieces, pieces if tokens == "special" else ())
    with serving(ScriptedExecutor(model), tokenizer=model.tokenizer, options=options, **LIMITS) as server:
        yield server, model
        server.rest()


@pytest.fixture(scope="module", params=["special", "added", "text"])
def servers(request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[Running, Model]]]:
    """By template: one that opens the reasoning itself, and one that does not."""
    with ExitStack() as stack:
        yield {
            template: stack.enter_context(thinker(template, tokens=request.param))
            for template in (THINKS, OPENS, SWITCHES)
        }


def both(server: Running, **fields: Any) -> dict[str, Any]:
    """The choice of a whole answer, which must be that of the stream, with the usage."""
    body = {"messages": ASK, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    usage = answer.json()["usage"]
    events = server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    joined: dict[str, Any] = {"content": "", "calls": [], "reasoning": "", "reasoning_content": "", "logprobs": []}
    finish = None
    for event in events[:-1]:
        [part] = event["choices"]
        for name in ("content", "reasoning", "reasoning_content"):
            joined[name] += part["delta"].get(name) or ""
        joined["logprobs"] += (part["logprobs"] or {}).get("content") or []
        for call in part["delta"].get("tool_calls", ()):
            if "id" in call:
                joined["calls"].append("")
            joined["calls"][-1] += call["function"]["arguments"]
        finish = part["finish_reason"] or finish
    message = choice["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert (joined["content"], joined["calls"], finish) == (message["content"] or "", calls, choice["finish_reason"])
    for name in ("reasoning", "reasoning_content"):
        assert joined[name] == message.get(name, "")
    assert joined["logprobs"] == ((choice["logprobs"] or {}).get("content") or [])
    generated = ("completion_tokens", "completion_tokens_details")
    assert [events[-1]["usage"][name] for name in generated] == [usage[name] for name in generated]
    return {
        "reasoning": message.get("reasoning_content"),
        "content": message["content"],
        "calls": calls,
        "finish": choice["finish_reason"],
        "num_reasoning": usage["completion_tokens_details"]["reasoning_tokens"],
        "num_tokens": usage["completion_tokens"],
        "logprobs": joined["logprobs"],
    }


CASES: list[tuple[str, str, str | None, str | None, list[str]]] = [
    (THINKS, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", []),
    (OPENS, "Hm.\n</think>\n\nYes.", "Hm.", "Yes.", []),
    (OPENS, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", []),
    (THINKS, "Yes.", None, "Yes.", []),
    (THINKS, " Yes: <b> is.", None, " Yes: <b> is.", []),
    (THINKS, "<think></think>Yes.", None, "Yes.", []),
    (OPENS, "</think>Yes.", None, "Yes.", []),
    (THINKS, "<think>Hm", "Hm", None, []),
    (OPENS, "Hm", "Hm", None, []),
    (OPENS, "Hm < 5 </th", "Hm < 5 </th", None, []),
    (THINKS, f"<think>Hm {CALL}</think>", "Hm", None, ["{...}"]),
    (THINKS, f"<think>Hm</think>{CALL}", "Hm", None, ['{"a": 1}']),
    (OPENS, f"{CALL}</think>So: {CALL}", "", "So:", ['{"a": 1}']),
]


@pytest.mark.parametrize(("template", "says", "reasoning", "content", "calls"), CASES)
def test_reasoning_is_told_apart(
    servers: dict[str, Any], template: str, says: str, reasoning: str | None, content: str | None, calls: list[str]
) -> None:
    server, model = servers[template]
    model.says = says
    found = both(server, tools=[ADD], logprobs=True)
    end, is_open = says.find("</think>"), template is OPENS
    shown = model.tokenizer.special_token_ids.isdisjoint(model.tokenizer.ids.values())

    if CALL in says.split("</think>")[0]:  # in the reasoning it is text, less what special tokens leave out
        inner = CALL if shown else CALL.replace("<tool_call>", "").replace("</tool_call>", "")
        reasoning, calls = f"{reasoning} {inner}".strip(), [call for call in calls if call != "{...}"]
    assert (found["reasoning"], found["content"], found["calls"]) == (reasoning, content, calls)
    assert found["finish"] == ("tool_calls" if calls else "stop")
    expected = 0
    if is_open or says.startswith("<think>"):
        expected = len(model.tokenizer.encode(says[: end + len("</think>")])) if end >= 0 else found["num_tokens"]
    assert found["num_reasoning"] == expected
    assert "".join(entry["token"] for entry in found["logprobs"]) == f"{says}</s>"


@pytest.mark.parametrize("cut", range(1, 22))
def test_reasoning_that_is_cut_anywhere(servers: dict[str, Any], cut: int) -> None:
    server, model = servers[THINKS]
    model.says = "<think>\nHm.\n</think>\n\nYes."
    found = both(server, max_tokens=cut)
    said = (found["reasoning"] or "") + (found["content"] or "")

    assert found["num_tokens"] == min(cut, len(model.tokenizer.encode(model.says)) + 1)
    assert "Hm.Yes.".startswith(said.strip()) or "<" in said


def test_special_tokens_that_are_asked_for_are_shown_in_the_answer_only(servers: dict[str, Any]) -> None:
    server, model = servers[THINKS]
    model.says = "<think>Hm<|end|>.</think>Yes<|end|>."
    found = both(server, skip_special_tokens=False)

    assert (found["reasoning"], found["content"]) == ("Hm<|end|>.", "Yes<|end|>.")


def test_a_stop_string_may_end_the_reasoning(servers: dict[str, Any]) -> None:
    server, model = servers[OPENS]
    model.says = "Hm. Stop it.</think>Yes."
    found = both(server, stop="Stop")

    assert (found["reasoning"], found["content"], found["finish"]) == ("Hm.", None, "stop")


def test_whether_reasoning_is_open_is_seen_in_every_prompt(servers: dict[str, Any]) -> None:
    server, model = servers[SWITCHES]
    model.says = "Hm.</think>Yes."
    off = both(server, chat_template_kwargs={"enable_thinking": False})
    assert off["reasoning"] is None
    model.says = "<think>Hm.</think>Yes."
    assert both(server, enable_thinking=True)["reasoning"] == "Hm."


def test_reasoning_can_be_left_out(servers: dict[str, Any]) -> None:
    server, model = servers[THINKS]
    model.says = "<think>Hm.</think>Yes."
    found = both(server, include_reasoning=False)

    assert (found["reasoning"], found["content"]) == (None, "Yes.")
    assert found["num_reasoning"] > 0


def test_reasoning_goes_back_to_the_template(servers: dict[str, Any]) -> None:
    server, model = servers[THINKS]
    model.says = "<think>Hm.</think>Yes."
    with server.openai() as client:
        message = client.chat.completions.create(model="bytes", messages=ASK).choices[0].message
        with client.chat.completions.stream(model="bytes", messages=ASK) as stream:
            streamed = stream.get_final_completion().choices[0].message
        for said in (message, streamed):
            client.chat.completions.create(model="bytes", messages=[*ASK, said.model_dump(), *ASK])
            assert "<think>Hm.</think><assistant>Yes." in model.prompt


@pytest.mark.parametrize(
    ("option", "reasoning", "content"),
    [("auto", "Hm.", "Yes."), ("none", None, "<think>Hm.</think>Yes."), ("mistral", None, "<think>Hm.</think>Yes.")],
)
def test_the_option_says_how_reasoning_is_marked(option: str, reasoning: str | None, content: str) -> None:
    with thinker(THINKS, tokens="text", reasoning_parser=option) as (server, model), server.openai() as client:
        model.says = "<think>Hm.</think>Yes."
        answer = client.chat.completions.create(model="bytes", messages=ASK)

    message: Any = answer.choices[0].message
    assert (getattr(message, "reasoning_content", None), message.content) == (reasoning, content)
    assert (answer.usage.completion_tokens_details is None) is (option == "none")  # type: ignore[union-attr]


# --- forms: a real model, with random weights ----------------------------------------------------------------

TINY_THINKS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "boolean"}},
    "required": ["z"],
    "additionalProperties": False,
}
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "z", "schema": SCHEMA}}},
        lambda message: list(json.loads(message.content)) == ["z"],
    ),
    "regex": ({"extra_body": {"guided_regex": "[ab]{3}"}}, lambda message: set(message.content) <= set("ab")),
    "choice": ({"extra_body": {"guided_choice": ["yes", "no"]}}, lambda message: message.content in ("yes", "no")),
    "grammar": ({"extra_body": {"guided_grammar": 'start: "x" B\nB: "y"'}}, lambda message: message.content == "xy"),
    "call": (
        {
            "tools": [{"type": "function", "function": {"name": "now", "parameters": NO_PARAMETERS}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        lambda message: [call.function.name for call in message.tool_calls] == ["now"],
    ),
}


@pytest.fixture(scope="module", params=["special", "added"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kinds = {request.param: ["<think>", "</think>"]}
    folder: Path = tmp_path_factory.mktemp("reasoning")
    with tiny_chat(folder, TINY_THINKS, **kinds) as server:
        yield server


@pytest.mark.parametrize("form", FORMS)
def test_a_form_applies_after_the_reasoning(tiny: Running, form: str) -> None:
    fields, fits = FORMS[form]
    [end] = [token for token in range(320, 322) if tiny.engine.tokenizer.id_to_bytes(token) == b"</think>"]  # type: ignore[union-attr]
    extra = {**fields.get("extra_body", {}), "return_token_ids": True}
    with tiny.openai() as client:
        for seed in range(3):
            answer: Any = client.chat.completions.create(
                **{**fields, "extra_body": extra},
                model="bytes",
                messages=ASK,
                max_tokens=200,
                seed=seed,
                logit_bias={str(end): 5.0},
            )
            [choice] = answer.choices
            assert choice.finish_reason in ("stop", "tool_calls")
            assert choice.message.reasoning_content
            assert fits(choice.message), choice.message
            details = answer.usage.completion_tokens_details
            assert details.reasoning_tokens == choice.token_ids.index(end) + 1


@pytest.mark.parametrize("form", FORMS)
def test_without_reasoning_a_form_applies_from_the_beginning(tiny: Running, form: str) -> None:
    fields, fits = FORMS[form]
    extra = {**fields.get("extra_body", {}), "enable_thinking": False}
    with tiny.openai() as client:
        answer: Any = client.chat.completions.create(
            **{**fields, "extra_body": extra}, model="bytes", messages=ASK, max_tokens=200, seed=1,
            logit_bias={"320": -100, "321": -100},
        )  # fmt: skip

    message = answer.choices[0].message
    assert getattr(message, "reasoning_content", None) is None
    assert fits(message), message


def test_reasoning_that_never_ends_is_cut_and_has_no_form(tiny: Running) -> None:
    with tiny.openai() as client, pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(
            model="bytes", messages=ASK, max_tokens=20, response_format=FORMS["schema"][0]["response_format"],
            logit_bias={"320": -100, "321": -100},
        )  # fmt: skip

    choice: Any = caught.value.completion.choices[0]
    assert choice.message.content is None
    assert caught.value.completion.usage.completion_tokens_details.reasoning_tokens == 20  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("begun", "reasons"),
    [("<think>Hm", True), ("<think>Hm.</think>Well: ", False), ("Well: ", False), ("</think> or <think>", True)],
)
def test_a_message_that_is_continued_says_where_it_is(tiny: Running, begun: str, reasons: bool) -> None:
    [end] = [token for token in range(320, 322) if tiny.engine.tokenizer.id_to_bytes(token) == b"</think>"]  # type: ignore[union-attr]
    body = {
        "messages": [*ASK, {"role": "assistant", "content": begun}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "guided_choice": ["yes", "no"],
        "logit_bias": {str(end): 5.0},
        "seed": 1,
    }
    answer = tiny.post("/v1/chat/completions", body)

    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["content"] in ("yes", "no")
    assert bool(message.get("reasoning_content")) is reasons
