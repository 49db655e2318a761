"""Prompts come out of text and JSON lines, each with its own sampling parameters."""

from __future__ import annotations

import pytest

from headway.cli.prompts import Job, PromptError, jobs_of_lines, jobs_of_texts
from headway.config import ConfigError, SamplingParams, Structured


def jobs(*lines: str, chat: bool = False, form: str = "auto", **sampling: object) -> list[Job]:
    return jobs_of_lines([line + "\n" for line in lines], sampling, chat=chat, form=form)


def test_text_is_one_prompt_per_line_that_has_any() -> None:
    found = jobs("one", "", "  ", "two: {", max_tokens=3)

    assert [(job.request_id, job.text, job.where) for job in found] == [
        ("0", "one", "line 1"),
        ("1", "two: {", "line 4"),
    ]
    assert all(job.sampling == SamplingParams(max_tokens=3) for job in found)


def test_arguments_are_prompts_too() -> None:
    found = jobs_of_texts(["one", "two"], {}, chat=True)

    assert [job.where for job in found] == ["prompt 1", "prompt 2"]
    assert found[1].messages == ({"role": "user", "content": "two"},)


def test_json_lines_override_what_was_given_for_all() -> None:
    first, second, third = jobs(
        '{"prompt": "a", "max_tokens": 5, "stop": "x", "logit_bias": {"7": -1}}',
        '{"prompt_token_ids": [1, 2], "request_id": "ids", "max_tokens": null}',
        '{"messages": [{"role": "user", "content": "b"}], "temperature": 0}',
        max_tokens=3,
        temperature=0.5,
    )

    assert first.sampling == SamplingParams(max_tokens=5, temperature=0.5, stop=("x",), logit_bias={7: -1.0})
    assert (second.request_id, second.token_ids, second.sampling.max_tokens) == ("ids", (1, 2), None)
    assert (third.text, third.messages) == (None, ({"role": "user", "content": "b"},))
    assert third.sampling.greedy


def test_json_lines_say_what_policies_look_at() -> None:
    job = jobs('{"prompt": "a", "priority": -1, "tenant": "x", "deadline_s": 2, "cache_salt": "s", "max_tokens": 3}')[0]

    assert job.service == {"priority": -1, "tenant": "x", "deadline_s": 2, "cache_salt": "s"}
    assert job.sampling == SamplingParams(max_tokens=3)


def test_json_lines_say_what_form_the_output_must_have() -> None:
    assert jobs('{"prompt": "a", "structured": {"regex": "a+"}}')[0].sampling.structured == Structured.regex("a+")


def test_chat_makes_messages_of_plain_prompts() -> None:
    assert jobs('{"prompt": "a"}', chat=True)[0].messages == ({"role": "user", "content": "a"},)
    assert jobs("a", chat=True)[0].messages == ({"role": "user", "content": "a"},)


def test_format_can_be_told() -> None:
    assert jobs('{"prompt": "a"}', form="text")[0].text == '{"prompt": "a"}'
    with pytest.raises(PromptError, match="line 1: is not JSON"):
        jobs("plain", form="jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "temprature": 1}', "line 2: unknown key 'temprature'; did you mean 'temperature'?"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens=0 is not usable"),
        ('{"prompt": "a", "seed": "x"}', 'line 2: seed cannot be "x": it must be an integer'),
        ('{"prompt": "a", "ignore_eos": 1}', "line 2: ignore_eos cannot be 1: it must be true or false"),
        ('{"prompt": "a", "top_k": 2.5}', "line 2: top_k cannot be 2.5"),
        ('{"prompt": "a", "stop": [1]}', "line 2: stop cannot be"),
        ('{"prompt": "a", "logit_bias": {"a": 1}}', "line 2: logit_bias cannot be"),
        ('{"prompt": "a", "structured": {"regex": 5}}', "line 2: structured='regex' is not usable: must be text"),
        ('{"prompt": "a", "structured": "a+"}', "line 2: structured must be an object with one of"),
        ('{"prompt": "a", "priority": "high"}', 'line 2: priority cannot be "high": it must be an integer'),
        ('{"prompt": "a", "tenant": 3}', "line 2: tenant cannot be 3: it must be a string"),
        ('{"prompt": 1}', "line 2: prompt must be text"),
        ('{"prompt_token_ids": [1, true]}', "line 2: prompt_token_ids must be a list of integers"),
        ('{"messages": []}', "line 2: messages must be"),
        ('{"prompt": "a", "messages": []}', "line 2: needs just one of"),
        ('{"max_tokens": 2}', "line 2: needs just one of"),
        ("[1]", "line 2: is not a JSON object"),
        ('{"prompt": ', "line 2: is not JSON"),
        ('{"prompt": "a", "request_id": "x"}', "line 2: request_id 'x' is taken by line 1"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(PromptError) as caught:
        jobs('{"prompt": "fine", "request_id": "x"}', line)

    assert message in str(caught.value)


def test_bad_options_for_all_are_not_blamed_on_a_line() -> None:
    with pytest.raises(ConfigError, match="top_p"):
        jobs("a", top_p=2.0)


def test_the_models_defaults_hold_for_what_was_not_given() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 50}

    [text] = jobs_of_texts(["a"], {"temperature": 1.5}, chat=False)
    [line] = jobs_of_lines(['{"prompt": "a", "top_p": 1.0}'], {"max_tokens": 3}, chat=False)

    assert text.sampling_with(defaults) == SamplingParams(temperature=1.5, top_p=0.9, max_tokens=50)
    assert line.sampling_with(defaults) == SamplingParams(temperature=0.6, top_p=1.0, max_tokens=3)
