"""Reading the shape of a model, and refusing what is not computed."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from headway.config import ConfigError
from headway.models.config import ModelConfig, UnsupportedModel
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
    return ModelConfig.from_hf(SMOLLM2 | changes)


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
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
            "sliding_window",
            "sliding_window=4096 hides tokens below max_position_embeddings=8192",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 99, "use_sliding_window": True},
            "sliding_window",
            "models with an attention window come later",
        ),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], feature: str, message: str) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        read(**changes)
    assert refused.value.feature == feature
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 8192},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 99, "use_sliding_window": False},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 99,
            "use_sliding_window": True,
            "max_window_layers": 30,
        },
        {"sliding_window": 99},
    ],
)
def test_a_window_without_effect_is_no_window(changes: dict[str, Any]) -> None:
    assert read(**changes).num_layers == 30


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
