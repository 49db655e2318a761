"""Forms of outputs through the whole engine: what comes out fits, the same in any company and after any preemption."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import LLM, SamplingParams, Structured
from headway.config import ConfigError
from headway.core.request import RequestRefused
from headway.engine.llm import OfflineLLM, PromptRefused
from headway.engine.trace_records import sampling_from_json, sampling_to_json
from tests.engine.builders import ScriptedExecutor, echo, make_engine
from tests.engine.tiny_model import write_tiny_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMS = [
    Structured.json(SCHEMA),
    Structured.regex(r"[a-z]{3}-\d{2,4}"),
    Structured.choice(["red", "green", "blue-ish"]),
    Structured.grammar('start: "(" start ")" | "x"'),
    None,
]
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}]


def params(form: Structured | None, **options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, "structured": form, **options})


def fits(form: Structured | None, text: str, finish_reason: str) -> bool:
    """Whether an output has its form; one that was cut by its length may be any text."""
    if form is None or finish_reason == "length":
        return form is None or form.kind == "grammar"
    if form.kind == "json":
        value = json.loads(text)
        return list(value) == ["name", "age", "tags"] and len(value["name"]) <= 6 and 0 <= value["age"] <= 99
    if form.kind == "regex":
        return re.fullmatch(form.text, text) is not None
    return text in json.loads(form.text) if form.kind == "choice" else re.fullmatch(r"\(*x\)*", text) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), num_blocks=200, block_size=4, weight_dtype="float32") as llm:
        yield llm


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_mixed_batch_fits_its_forms_and_gives_the_tokens_of_each_alone(llm: LLM, sampling: dict[str, Any]) -> None:
    wanted = [params(form, **sampling) for form in FORMS]
    prompts = [f"say {number}" for number in range(len(FORMS))]

    together = llm.generate(prompts, wanted)

    for prompt, one, output in zip(prompts, wanted, together, strict=True):
        assert fits(one.structured, output.text, output.finish_reason), output.text
        assert llm.generate(prompt, one)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_preemption_changes_no_token(folder: Path, llm: LLM) -> None:
    wanted = [params(form, temperature=1.0, seed=number) for number, form in enumerate([*FORMS[:1] * 5, FORMS[1]])]
    prompts = [f"a prompt with number {number}" for number in range(len(wanted))]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, wanted)]

    for options in ({}, {"swap_space_gib": 0.01, "preemption_mode": "swap"}):
        with LLM(str(folder), num_blocks=30, block_size=4, weight_dtype="float32", **options) as small:
            outputs = small.generate(prompts, wanted)

        assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 2
        assert [output.outputs[0].token_ids for output in outputs] == expected


def test_a_form_whose_end_is_not_allowed_fails_alone(llm: LLM) -> None:
    sampling = [params(FORMS[2], min_tokens=50), params(FORMS[2]), params(None, max_tokens=4)]

    broken, kept, free = llm.generate(["one", "two", "three"], sampling)

    assert broken.finish_reason == "error"
    assert broken.error is not None and broken.error.message.startswith("structured output failed: no token is left")
    assert fits(FORMS[2], kept.text, kept.finish_reason)
    assert len(free.outputs[0].token_ids) == 4


def test_a_bad_form_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(PromptRefused, match=r"prompt 1: .*unclosed group") as caught:
        llm.generate(["a", "b"], [params(None), params(Structured.regex("(a"))])

    assert (caught.value.field, caught.value.index) == ("structured", 1)


def test_an_engine_that_cannot_keep_forms_says_so() -> None:
    llm = OfflineLLM(make_engine(ScriptedExecutor(echo)))

    with pytest.raises(RequestRefused, match="cannot keep outputs to a form"):
        llm.generate("abc", params(FORMS[1]))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"json": {"type": "integer"}}, Structured("json", '{"type": "integer"}')),
        ({"json": "{}"}, Structured("json", "{}")),
        ({"json_object": True, "regex": None}, Structured("json", '{"type": "object"}')),
        ({"regex": "a+"}, Structured("regex", "a+")),
        ({"choice": ["a", "b"]}, Structured("choice", '["a", "b"]')),
        ({"grammar": "start: "}, Structured("grammar", "start: ")),
    ],
    ids=str,
)
def test_forms_are_written_as_objects(form: dict[str, Any], expected: Structured) -> None:
    assert Structured.of(form) == expected


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "must have just one of json, regex"),
        ({"regex": "a", "json_object": True}, "must have just one of"),
        ({"xml": "a"}, "must have just one of"),
        ({"json_object": False}, "must be true"),
        ({"json": 5}, "must be a JSON schema"),
        ({"regex": ""}, "must not be empty"),
        ({"choice": []}, "none of them empty"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": ["a", 1]}, "must be a list of texts"),
        ({"choice": "ab"}, "must be a list of texts"),
    ],
    ids=str,
)
def test_forms_that_say_nothing_are_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Structured.of(form)

    assert caught.value.field == "structured"


def test_a_form_needs_the_end_of_text() -> None:
    with pytest.raises(ConfigError, match="ignore_eos=True"):
        params(FORMS[1], ignore_eos=True)


def test_a_trace_has_the_form_as_text() -> None:
    sampling = params(FORMS[1])

    assert sampling_to_json(sampling)["structured"] == {"regex": r"[a-z]{3}-\d{2,4}"}
    assert sampling_from_json(json.loads(json.dumps(sampling_to_json(sampling)))) == sampling


@pytest.mark.real_model
def test_smollm2_keeps_to_forms_alone_and_in_company() -> None:
    with LLM("smollm2-135m", num_blocks=300, max_model_len=512) as llm:
        prompts = ["A person as JSON:", "A phone number:", "The colour of the sky is", "f(x) =", "Once upon a time"]
        wanted = [params(form, temperature=0.0, max_tokens=80) for form in FORMS]

        together = llm.generate(prompts, wanted)

        for prompt, one, output in zip(prompts, wanted, together, strict=True):
            assert fits(one.structured, output.text, output.finish_reason), output.text
            assert llm.generate(prompt, one)[0].outputs[0].token_ids == output.outputs[0].token_ids
