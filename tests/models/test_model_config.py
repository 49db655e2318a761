"""Reading the shape of a model, and refusing what is not computed."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from headway.config import ConfigError
from headway.models.config import ModelConfig, UnsupportedModel
from headway.models.hf_config import read_hf_config
from headway.models.llama import DecoderModel
from headway.models.registry import model_class, supported_architectures

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def read(**changes: Any) -> ModelConfig:
    return read_hf_config(SMOLLM2 | changes)


def test_smollm2() -> None:
    expected = ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
        bos_token_id=1,
    )
    assert read() == expected
    assert expected.group_size == 3
    assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, {"qkv_bias": True, "o_bias": False, "qk_norm": False}),
        (
            {"architectures": ["Qwen3ForCausalLM"], "head_dim": 128},
            {"qkv_bias": False, "qk_norm": True, "head_dim": 128},
        ),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"head_dim": 128}),
        ({"architectures": None, "model_type": "mistral"}, {"architecture": "mistral"}),
        ({"attention_bias": True, "mlp_bias": True}, {"qkv_bias": True, "o_bias": True, "mlp_bias": True}),
        ({"eos_token_id": [5, 7]}, {"eos_token_ids": (5, 7)}),
        ({"eos_token_id": None}, {"eos_token_ids": ()}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 9}),
        ({"head_dim": None}, {"head_dim": 64}),
    ],
)
def test_what_the_architectures_differ_in(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    read_values = dataclasses.asdict(read(**changes))
    assert {name: read_values[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e5, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"rope_type": "default"}}, 1e5, None),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        ({"rope_theta": None}, 1e4, None),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
            1e6,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
        ),
    ],
)
def test_rope_keys_old_and_new(changes: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    config = read(**changes)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("changes", "feature", "message"),
    [
        ({"architectures": ["Gemma3ForCausalLM"]}, "Gemma3ForCausalLM", "its architecture comes later"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope_type longrope", "rope_type='longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type dynamic", "only default, linear, llama3, yarn"),
        ({"hidden_act": "gelu"}, "hidden_act gelu", "only 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "only 1 is"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization gptq", "take the unquantised checkpoint"),
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "per_layer_config", "is not supported in architecture"),
        ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow", "is not known in architecture 'llama' and may change what"),
        ({"use_sliding_window": True, "sliding_window": 99}, "use_sliding_window", "only False, None"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 15}, "layer_types", "no sliding_window for it"),
        ({"layer_types": ["linear_attention"] * 30}, "layer_types", "'linear_attention' are not supported"),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"] * 30, "sliding_window": 99},
            "layer_types",
            "no sliding_window for it in architecture 'qwen3'",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "rope parameter mrope_section", ""),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope parameter factor", "rope_type='default'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, "rope parameter full_attention", "one set"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "attn_factor": 1.1}}, "rope parameter attn_factor", "=1.1"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], feature: str, message: str) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        read(**changes)
    assert refused.value.feature == feature
    assert message in str(refused.value)


MISTRAL, QWEN2, QWEN3 = (
    {"architectures": [f"{name}ForCausalLM"], "sliding_window": 99} for name in ("Mistral", "Qwen2", "Qwen3")
)
FULL, SLIDING = ["full_attention"], ["sliding_attention"]


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        (MISTRAL, 99),
        (MISTRAL | {"sliding_window": None}, None),
        (MISTRAL | {"layer_types": FULL * 30}, 99),
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        (QWEN2, None),
        (QWEN2 | {"use_sliding_window": True}, 99),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 30}, None),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 29}, 99),
        (QWEN3 | {"use_sliding_window": True, "layer_types": FULL * 30}, None),
        (QWEN3 | {"use_sliding_window": True, "layer_types": FULL * 29 + SLIDING, "max_window_layers": 30}, 99),
        (QWEN3 | {"layer_types": FULL * 30}, None),
        ({"sliding_window": 99}, None),
        ({"layer_types": FULL * 30, "use_sliding_window": False}, None),
    ],
)
def test_which_layers_have_a_window(changes: dict[str, Any], window: int | None) -> None:
    config = read(**changes)

    assert config.sliding_window == window
    assert config.max_context_len == min(8192, window or 8192)


def rope(**scaling: Any) -> dict[str, Any]:
    return {"rope_scaling": scaling}


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 8192),
        (rope(type="linear", factor=2.0), 16384),
        (rope(type="linear", factor=2.5), 20480),
        (rope(type="linear", factor=4.0, original_max_position_embeddings=2048), 8192),
        (rope(type="yarn", factor=4.0), 32768),
        (rope(type="yarn", factor=4.0, original_max_position_embeddings=2048), 8192),
        (rope(type="yarn", factor=4.0, original_max_position_embeddings=4096), 16384),
        (rope(type="yarn", factor=2.0, original_max_position_embeddings=2048), 8192),
        (rope(type="yarn", factor=None, original_max_position_embeddings=2048), 8192),
        (rope(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0), 8192),
        (MISTRAL | {"sliding_window": 9000} | rope(type="yarn", factor=4.0), 9000),
    ],
)
def test_the_longest_context(changes: dict[str, Any], longest: int) -> None:
    assert read(**changes).max_context_len == longest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size=None .* is missing"),
        ({"num_hidden_layers": 0}, "num_layers=0 .* at least 1"),
        ({"hidden_size": 57.6}, "hidden_size=57.6 .* whole number"),
        ({"num_key_value_heads": 2}, r"num_kv_heads=2 .* must divide num_heads \(9\)"),
        ({"head_dim": 65}, "head_dim=65 .* must be even"),
        ({"architectures": None, "model_type": None}, "architectures=None .* must name"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0 .* above 0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0 .* at least 0"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps='tiny' .* must be a number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false' .* true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>' .* token id"),
        ({"layer_types": FULL}, r"layer_types=.* must be a list of num_hidden_layers \(30\)"),
        (MISTRAL | {"sliding_window": 1}, "sliding_window=1 .* at least 2"),
        (MISTRAL | {"sliding_window": "all"}, "sliding_window='all' .* whole number"),
        (rope(type="linear"), "rope_scaling.factor=None .* is missing"),
        (rope(type="linear", factor=0), "rope_scaling.factor=0 .* above 0"),
        (rope(type="linear", factor="2"), "rope_scaling.factor='2' .* must be a number"),
        (rope(type="llama3", factor=8.0, high_freq_factor=4.0), "rope_scaling.low_freq_factor=None .* is missing"),
        (rope(type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0), "above low_freq_factor"),
        (rope(type="yarn", factor=2.0, beta_fast=1, beta_slow=2), "at least beta_slow"),
        (rope(type="yarn", factor=2.0, truncate=1), "truncate=1 .* true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear' .* must be an object"),
        (rope(type="linear", factor=2.0) | {"rope_parameters": {"rope_theta": 1e6}}, "contradicts rope_parameters"),
    ],
)
def test_senseless_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_the_registry_knows_each_architecture_by_all_its_names() -> None:
    assert supported_architectures() == ("llama", "mistral", "qwen2", "qwen3")
    for name in ("llama", "LlamaForCausalLM", "Qwen3ForCausalLM", "qwen2"):
        assert model_class(name) is DecoderModel
    with pytest.raises(UnsupportedModel, match=r"'gemma3' is not supported: .* \(now: llama, mistral, qwen2, qwen3\)"):
        model_class("gemma3")
