"""Sampling parameters that a model asks for: read from its files, taken where nothing else is said, told at start."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from headway import LLM, SamplingParams
from headway.config import ConfigError
from headway.models.loading import BadModelFile, GenerationDefaults, ModelSource, load_generation_defaults
from headway.models.tiny import make_tiny
from tests.support.gguf_files import write_gguf


def folder_with(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def load(folder: Path, content: Any, choice: str = "auto") -> GenerationDefaults:
    return load_generation_defaults(ModelSource("m", "folder", folder_with(folder, content)), choice)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ({}, {}),
        ({"eos_token_id": [2, 3], "transformers_version": "5", "do_sample": True, "num_beams": 1}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        (
            {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05},
            {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05},
        ),
        ({"max_new_tokens": 2048, "min_new_tokens": 2}, {"max_tokens": 2048, "min_tokens": 2}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"temperature": None, "top_k": 0}, {"top_k": 0}),
        ({"top_k": -1, "temperature": 1}, {"top_k": 0, "temperature": 1.0}),
    ],
    ids=str,
)
def test_what_a_generation_config_says_holds(tmp_path: Path, content: dict[str, Any], values: dict[str, Any]) -> None:
    defaults = load(tmp_path, content)

    assert (dict(defaults.values), defaults.not_applied) == (values, ())
    SamplingParams(**{"max_tokens": None, **defaults.values})


def test_a_sentence_says_what_holds_and_what_is_not_applied(tmp_path: Path) -> None:
    defaults = load(tmp_path, {"temperature": 0.6, "top_k": 20, "no_repeat_ngram_size": 3, "typical_p": 1.0})

    assert defaults.not_applied == ("no_repeat_ngram_size",)
    assert defaults.describe() == (
        "sampling defaults: temperature 0.6, top_k 20 (of the model's generation_config.json; the option"
        " generation_config can turn them off); not applied: no_repeat_ngram_size"
    )
    assert (
        load(tmp_path, {"temperature": 0.6}, "headway").describe() == "sampling defaults: Headway's own, as asked for"
    )


@pytest.mark.parametrize(
    "content",
    [
        {"temperature": "hot"},
        {"temperature": -1},
        {"top_p": 0},
        {"top_k": [5]},
        {"max_new_tokens": 0},
        {"eos_token_id": "x"},
    ],
    ids=str,
)
def test_values_that_cannot_be_used_are_told(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile, match=r"generation_config\.json"):
        load(tmp_path / "model", content)
    with pytest.raises(ConfigError, match="generation_config"):
        load(tmp_path / "model", {}, str(folder_with(tmp_path / "other", content)))


def test_another_file_goes_in_place_of_the_models(tmp_path: Path) -> None:
    other = folder_with(tmp_path / "other", {"temperature": 0.2, "eos_token_id": [5, 6]})

    for choice in (str(other), str(other / "generation_config.json")):
        defaults = load(tmp_path / "model", {"top_p": 0.5, "eos_token_id": 4}, choice)
        assert (dict(defaults.values), defaults.eos_token_ids) == ({"temperature": 0.2}, (5, 6))
    for choice in (str(tmp_path / "none"), str(tmp_path), ""):
        with pytest.raises(ConfigError, match="generation_config"):
            load(tmp_path / "model", {}, choice)


def test_a_gguf_file_may_have_defaults_too(tmp_path: Path) -> None:
    def extra(writer: GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 30)
        writer.add_float32("general.sampling.penalty_repeat", 1.5)
        writer.add_int32("general.sampling.mirostat", 2)

    source = ModelSource("m", "gguf", write_gguf(tmp_path / "m.gguf", {}, extra=extra))

    defaults = load_generation_defaults(source)

    assert dict(defaults.values) == {"temperature": 0.5, "top_k": 30, "repetition_penalty": 1.5}
    assert defaults.not_applied == ("general.sampling.mirostat",)
    assert load_generation_defaults(source, "headway").values == {}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny(tmp_path_factory.mktemp("tiny") / "m")
    content = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    return folder_with(folder, {**content, "temperature": 0.0, "repetition_penalty": 1.3, "max_new_tokens": 5})


def test_llm_takes_them_where_nothing_is_said(model: Path) -> None:
    with LLM(str(model), num_blocks=20) as llm:
        asked = SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=5)
        assert llm.default_sampling_params == asked
        assert any("repetition_penalty 1.3" in sentence for sentence in llm.engine.limits)
        [default], [same] = llm.generate("the fox"), llm.generate("the fox", asked)
        [own] = llm.generate("the fox", dataclasses.replace(llm.default_sampling_params, max_tokens=2))

    assert default.outputs[0].token_ids == same.outputs[0].token_ids
    assert own.outputs[0].token_ids == same.outputs[0].token_ids[:2]


def test_llm_leaves_them_alone_if_told_so(model: Path) -> None:
    with LLM(str(model), num_blocks=20, generation_config="headway") as llm:
        assert llm.default_sampling_params == SamplingParams()
    with pytest.raises(ConfigError, match="generation_config"):
        LLM(str(model), num_blocks=20, generation_config="/no/such/file")


def test_ends_of_another_file_end_outputs(model: Path, tmp_path: Path) -> None:
    other = folder_with(tmp_path / "other", {"temperature": 0.0, "eos_token_id": list(range(250))})

    with LLM(str(model), num_blocks=20, generation_config=str(other)) as llm:
        [output] = llm.generate("the fox", SamplingParams(temperature=0.0, logit_bias={7: 100.0}))

    assert (output.finish_reason, len(output.outputs[0].token_ids)) == ("stop", 1)
