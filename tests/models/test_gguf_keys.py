"""Metadata of GGUF files that changes what is computed: applied as llama.cpp does, or refused, never passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import Keys

from headway.models.config import ModelConfig, UnsupportedModel
from headway.models.loading import BadModelFile, ModelSource, load_config
from headway.models.loading.gguf_keys import IGNORED, NEUTRAL, USED
from headway.models.rope import rope_table
from tests.support.gguf_files import HEAD_DIM, add_tensor, write_gguf

BASE = 50000.0
CONTEXT = 128
WRITTEN = {  # in every file of the tests
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base",
}  # fmt: skip


def read(path: Path, architecture: str = "llama", *, divisors: np.ndarray | None = None, **entries: Any) -> ModelConfig:
    """The config of a file with these keys below the architecture's name, dots written as ``__``."""

    def extra(writer: GGUFWriter) -> None:
        for name, value in entries.items():
            key = f"{architecture}.{name.replace('__', '.')}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        if divisors is not None:
            add_tensor(writer, "rope_freqs.weight", divisors)

    written = write_gguf(path / "m.gguf", {}, architecture=architecture, extra=extra)
    return load_config(ModelSource("m", "gguf", written))


def all_keys(section: type = Keys) -> Iterator[str]:
    """Every key of the gguf package that begins with the architecture, without it."""
    for name, value in vars(section).items():
        if isinstance(value, type):
            yield from all_keys(value)
        elif not name.startswith("_") and isinstance(value, str) and value.startswith("{arch}."):
            yield value.removeprefix("{arch}.").replace("{dense}", "dense_2")


def test_there_are_keys_to_walk() -> None:
    keys = set(all_keys())

    assert len(keys) > 90
    assert keys >= WRITTEN
    assert keys >= IGNORED
    assert keys >= USED - {"rope.scale_linear"}, "the old name of a factor is no constant any more"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("key", sorted({*all_keys(), "a_key_of_tomorrow", "attention.tomorrow", "rope.tomorrow"}))
def test_a_key_is_used_known_to_have_no_effect_or_refused(key: str, architecture: str, tmp_path: Path) -> None:
    entry = {key.replace(".", "__"): 0.7}
    if key in WRITTEN or key in USED:
        return  # tested by what they do
    if key in IGNORED:
        assert read(tmp_path, architecture, **entry) == read(tmp_path, architecture)
        return

    with pytest.raises(UnsupportedModel, match=rf"m\.gguf: metadata {architecture}\.{key}=0\.\d+ ") as refused:
        read(tmp_path, architecture, **entry)
    assert refused.value.feature == f"{architecture}.{key}"
    if key != "attention.causal":  # false is no absence there
        for nothing in (0, False, "", [0, 0]):
            assert read(tmp_path, architecture, **{key.replace(".", "__"): nothing}) == read(tmp_path, architecture)


@pytest.mark.parametrize("key", NEUTRAL)
def test_neutral_values_are_taken(key: str, tmp_path: Path) -> None:
    for value in NEUTRAL[key]:
        assert read(tmp_path, **{key.replace(".", "__"): value}) == read(tmp_path)


def test_an_attention_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"llama\.attention\.causal=False"):
        read(tmp_path, attention__causal=False)


def test_what_repeats_another_key_is_taken(tmp_path: Path) -> None:
    repeated = {
        "embedding_length_out": 64,
        "rope__dimension_count_swa": HEAD_DIM,
        "rope__freq_base_swa": BASE,
        "attention__key_length": HEAD_DIM,
        "attention__scale": 0.25,
    }

    assert read(tmp_path, **repeated) == read(tmp_path)


def test_a_window_limits_the_context(tmp_path: Path) -> None:
    for architecture in ("llama", "qwen2", "qwen3"):
        config = read(tmp_path, architecture, attention__sliding_window=32, attention__sliding_window_pattern=2)
        assert config.max_context_len == 32
        assert read(tmp_path, architecture, attention__sliding_window=0).max_context_len == CONTEXT


def expected_table(
    factor: float, *, ext_factor: float, attn_factor: float = 1.0, original: int, beta_fast: float, beta_slow: float
) -> torch.Tensor:
    """Cosines and sines as the format's authors compute them, from the definition, position by position."""
    rows = []
    turns_to_pair = HEAD_DIM / (2 * math.log(BASE))
    low = max(0, math.floor(turns_to_pair * math.log(original / (beta_fast * 2 * math.pi))))
    high = min(HEAD_DIM - 1, math.ceil(turns_to_pair * math.log(original / (beta_slow * 2 * math.pi))))
    magnitude = attn_factor * (1 + 0.1 * math.log(factor) if ext_factor else 1)
    for position in range(40):
        row = []
        for pair in range(HEAD_DIM // 2):
            whole = position * BASE ** (-2 * pair / HEAD_DIM)
            keep = ext_factor * (1 - min(1, max(0, (pair - low) / max(0.001, high - low))))
            angle = whole / factor * (1 - keep) + whole * keep
            row.append((magnitude * math.cos(angle), magnitude * math.sin(angle)))
        rows.append(row)
    return torch.tensor(rows).transpose(1, 2)


PLAIN = {"ext_factor": 0.0, "original": CONTEXT, "beta_fast": 32.0, "beta_slow": 1.0}
YARN = {**PLAIN, "ext_factor": 1.0}


@pytest.mark.parametrize(
    ("entries", "factor", "options"),
    [
        ({}, 1.0, PLAIN),
        ({"scale_linear": 4.0}, 4.0, PLAIN),
        ({"scale_linear": 0.0}, 1.0, PLAIN),
        ({"scaling__factor": 4.0}, 4.0, PLAIN),
        ({"scaling__factor": 4.0, "scale_linear": 2.0}, 4.0, PLAIN),
        ({"scaling__factor": 4.0, "scaling__type": "linear", "scaling__finetuned": True}, 4.0, PLAIN),
        ({"scaling__factor": 4.0, "scaling__type": "none"}, 1.0, PLAIN),
        ({"scaling__type": "linear"}, 1.0, PLAIN),
        ({"scaling__type": "linear", "scaling__factor": 0.0, "scaling__attn_factor": 1.0}, 1.0, PLAIN),
        ({"scaling__type": "linear", "scaling__factor": 4.0, "scaling__yarn_ext_factor": 0.0}, 4.0, PLAIN),
        ({"scaling__type": "linear", "scaling__factor": 4.0, "scaling__yarn_ext_factor": -1.0}, 4.0, PLAIN),
        ({"scaling__type": "yarn"}, 1.0, PLAIN),
        ({"scaling__type": "yarn", "scaling__factor": 1.0, "scaling__yarn_ext_factor": 1.0}, 1.0, PLAIN),
        ({"scaling__type": "yarn", "scaling__factor": 4.0}, 4.0, YARN),
        ({"scaling__type": "yarn", "scale_linear": 4.0}, 4.0, YARN),
        ({"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_ext_factor": 1.0}, 4.0, YARN),
        ({"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_attn_factor": -1.0}, 4.0, YARN),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_attn_factor": 1 + 0.1 * math.log(4)},
            4.0,
            YARN,
        ),
        ({"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_log_multiplier": 0.0}, 4.0, YARN),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__attn_factor": 1.25},
            4.0,
            {**YARN, "attn_factor": 1.25},
        ),
        (
            {"scaling__type": "yarn", "scaling__factor": 8.0, "scaling__original_context_length": 512},
            8.0,
            {**YARN, "original": 512},
        ),
        (
            {
                "scaling__type": "yarn",
                "scaling__factor": 8.0,
                "scaling__original_context_length": 4096,
                "scaling__yarn_beta_fast": 16.0,
                "scaling__yarn_beta_slow": 2.0,
            },
            8.0,
            {**YARN, "original": 4096, "beta_fast": 16.0, "beta_slow": 2.0},
        ),
    ],
)
def test_positions_are_scaled_as_the_file_says(
    entries: dict[str, Any], factor: float, options: dict[str, Any], tmp_path: Path
) -> None:
    config = read(tmp_path, **{f"rope__{key}": value for key, value in entries.items()})

    torch.testing.assert_close(rope_table(config, 40), expected_table(factor, **options), rtol=1e-4, atol=1e-4)


def test_the_scaled_length_is_reached(tmp_path: Path) -> None:
    def longest(**entries: Any) -> int:
        return read(tmp_path, **{f"rope__{key}": value for key, value in entries.items()}).max_context_len

    assert longest(scale_linear=4.0) == 4 * CONTEXT
    assert longest(scaling__factor=4.0, scaling__original_context_length=32) == CONTEXT
    assert longest(scaling__type="yarn", scaling__factor=4.0) == 4 * CONTEXT
    assert longest(scaling__type="yarn", scaling__factor=4.0, scaling__original_context_length=64) == 256
    assert longest(scaling__type="none", scaling__factor=4.0) == CONTEXT


@pytest.mark.parametrize(
    "entries",
    [
        {"type": "yarn", "factor": 4.0, "yarn_ext_factor": 0.5},
        {"type": "yarn", "factor": 4.0, "yarn_attn_factor": 1.0},
        {"type": "yarn", "factor": 4.0, "yarn_log_multiplier": 0.1},
        {"type": "linear", "factor": 4.0, "yarn_ext_factor": 1.0},
        {"type": "linear", "factor": 4.0, "attn_factor": 1.2},
        {"type": "linear", "factor": 4.0, "yarn_log_multiplier": 0.1},
        {"type": "none", "attn_factor": 1.2},
        {"yarn_attn_factor": 1.2},
        {"alpha": 1000.0},
        {"type": "longrope", "factor": 4.0},
        {"type": "dynamic", "factor": 4.0},
    ],
)
def test_a_scaling_that_is_not_computed_is_refused(entries: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"m\.gguf: .* not supported"):
        read(tmp_path, **{f"rope__scaling__{key}": value for key, value in entries.items()})


def test_divisors_and_a_factor_at_once_are_refused(tmp_path: Path) -> None:
    ones = np.ones(HEAD_DIM // 2, np.float32)

    assert read(tmp_path, divisors=ones, rope__scaling__type="linear", rope__scaling__factor=0.0) is not None
    with pytest.raises(UnsupportedModel, match="at once"):
        read(tmp_path, divisors=ones, rope__scaling__factor=2.0)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_senseless_factor_is_named(factor: float, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"llama\.rope\.scaling\.factor is .* no factor"):
        read(tmp_path, rope__scaling__factor=factor)
