"""Every field of config.json that transformers documents, varied: our scores are its scores, or the model is refused.

A field that a later transformers adds has no variation here, and fails the test until somebody has looked at it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from headway.config import ConfigError
from headway.models.config import UnsupportedModel
from headway.models.config_fields import IGNORED, NEUTRAL, USED
from headway.models.hf_config import read_hf_config
from headway.models.llama import DecoderModel
from headway.models.loading import LoadingError, ModelSource, load_weights
from headway.models.ops.registry import select_ops
from headway.models.registry import supported_architectures
from tests.models.paged import PagedRunner

NUM_TOKENS = 40
BASE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": None,
    "rope_theta": 10000.0,
}
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES: list[Any] = [
    None,
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"type": "linear", "factor": 3.0},
    {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    YARN,
    {**YARN, "factor": None},
    {**YARN, "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    LLAMA3,
]
REFUSED_ROPES: list[Any] = [
    {"rope_type": "default", "factor": 2.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "default", "mrope_section": [1, 1, 2], "type": "mrope"},
    {"type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {**YARN, "attn_factor": 1.5},
    {**YARN, "extrapolation_factor": 0.5},
    {**LLAMA3, "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "default", "rope_theta": 500.0}},
]
LEGACY: dict[str, list[Any]] = {
    "rope_scaling": ROPES + REFUSED_ROPES,
    "rope_theta": [500.0],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [16],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}, None],
    "per_layer_config": [{"1": {"intermediate_size": 24}}, {"0": {"head_dim": 4}}],
    "torch_dtype": ["float16"],
    "layer_types": [[FULL] * 3, [FULL, SLIDING, FULL], [SLIDING] * 3, [CHUNKED] * 3, [FULL], None],
    "use_sliding_window": [True, False],
    "sliding_window": [16, 48, None],
    "max_window_layers": [1],
    "attention_bias": [True, False],
    "mlp_bias": [True, False],
    "head_dim": [16, None],
    "output_attentions": [True],
    "num_labels": [3],
    "temperature": [0.3],
    "_name_or_path": ["x"],
    "attn_implementation": ["sdpa"],
    "logit_scale": [2.0, 1.0],
    "final_logit_softcapping": [30.0, None],
    "attn_logit_softcapping": [50.0, None],
    "a_field_of_tomorrow": [0.5, None, False],
}
"""Fields of older files, of other architectures, and of nobody, which a file may have all the same."""
VARIATIONS: dict[str, list[Any]] = LEGACY | {
    "transformers_version": ["4.0.0"],
    "architectures": [None],
    "output_hidden_states": [True],
    "return_dict": [False],
    "dtype": ["float16", "float32"],
    "chunk_size_feed_forward": [2],
    "is_encoder_decoder": [True, False],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0, "b": 1, "c": 2}],
    "problem_type": ["regression"],
    "vocab_size": [60],
    "hidden_size": [40],
    "intermediate_size": [24],
    "num_hidden_layers": [1, 4],
    "num_attention_heads": [2, 8],
    "num_key_value_heads": [1, 4, None],
    "hidden_act": ["silu", "swish", "gelu", "relu"],
    "max_position_embeddings": [128],
    "initializer_range": [0.5],
    "rms_norm_eps": [1e-2, 0.5],
    "use_cache": [False],
    "pad_token_id": [0, 7],
    "bos_token_id": [3],
    "eos_token_id": [4, [4, 5]],
    "pretraining_tp": [2],
    "tie_word_embeddings": [True, False],
    "rope_parameters": ROPES + REFUSED_ROPES,
    "attention_dropout": [0.5],
}
WINDOW: dict[str, Any] = {"sliding_window": 16, "use_sliding_window": True}
MORE: list[dict[str, Any]] = [
    {**WINDOW, "max_window_layers": 0},
    {**WINDOW, "max_window_layers": 1},
    {**WINDOW, "max_window_layers": 3},
    {**WINDOW, "sliding_window": 48, "max_window_layers": 0},
    {**WINDOW, "layer_types": [FULL] * 3, "max_window_layers": 0},
    {**WINDOW, "layer_types": [FULL, SLIDING, FULL]},
    {**WINDOW, "layer_types": [FULL, SLIDING, FULL], "use_sliding_window": False},
    {"sliding_window": 16, "layer_types": [SLIDING] * 3},
    {"sliding_window": 16, "layer_types": [FULL] * 3},
    {"rope_scaling": YARN, "rope_parameters": LLAMA3},
    {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 900.0}},
]
"""Fields that mean something together."""

REFUSED: dict[str, list[Any]] = {
    "is_encoder_decoder": [True],
    "hidden_act": ["gelu", "relu"],
    "rope_parameters": REFUSED_ROPES,
    "rope_scaling": REFUSED_ROPES,
    "partial_rotary_factor": [0.5],
    "original_max_position_embeddings": [16],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}],
    "per_layer_config": LEGACY["per_layer_config"],
    "layer_types": [[CHUNKED] * 3, [FULL]],
    "logit_scale": [2.0],
    "final_logit_softcapping": [30.0],
    "attn_logit_softcapping": [50.0],
    "a_field_of_tomorrow": [0.5],
}
REFUSED_BY: dict[str, dict[str, list[Any]]] = {
    "llama": {"use_sliding_window": [True]},
    "mistral": {"mlp_bias": [True], "attention_bias": [True], "num_key_value_heads": [None]},
    "qwen2": {"mlp_bias": [True]},
    "qwen3": {"mlp_bias": [True], "head_dim": [None]},
}
"""What must be refused, and nothing else may be. The nulls fit no weights: transformers takes none there."""

NO_REFERENCE = [("qwen2", {"head_dim": None})]
"""Null means what an absent field means; transformers trips over it."""


def is_refused(architecture: str, changes: dict[str, Any]) -> bool:
    if "rope_scaling" in changes and "rope_parameters" in changes:
        return True
    if SLIDING in (changes.get("layer_types") or []):
        needs = {"mistral": ["sliding_window"], "llama": ["nothing helps"]}.get(architecture, list(WINDOW))
        if not all(changes.get(name) for name in needs):
            return True
    return any(
        value in rules.get(name, []) for name, value in changes.items() for rules in (REFUSED, REFUSED_BY[architecture])
    )


def documented(architecture: str) -> list[str]:
    return [spec.name for spec in dataclasses.fields(type(AutoConfig.for_model(architecture)))]


def cases() -> Iterator[Any]:
    for architecture in supported_architectures():
        for name in dict.fromkeys((*documented(architecture), *LEGACY)):
            for value in VARIATIONS.get(name, []):
                yield pytest.param(architecture, {name: value}, id=f"{architecture}-{name}={value}"[:80])
        for changes in MORE:
            yield pytest.param(architecture, changes, id=f"{architecture}-{changes}"[:120])


@pytest.mark.parametrize("architecture", supported_architectures())
def test_every_documented_field_is_varied_and_has_its_rule(architecture: str) -> None:
    fields = documented(architecture)

    assert [name for name in fields if name not in VARIATIONS] == []
    known = USED[architecture] | IGNORED[architecture] | set(NEUTRAL)
    assert [name for name in fields if name not in known and not name.startswith("output_")] == []


@pytest.mark.parametrize("architecture", supported_architectures())
def test_no_field_has_two_rules(architecture: str) -> None:
    assert not USED[architecture] & IGNORED[architecture]


@pytest.mark.parametrize(("architecture", "changes"), list(cases()))
def test_scores_are_those_of_transformers_or_the_model_is_refused(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    content = {"architectures": None, "model_type": architecture, **BASE, **changes}
    reference = reference_model(content)
    if reference is None:  # then no weights fit it either
        tensors = reference_weights(reference_model({"model_type": architecture, **BASE}))
    else:
        tensors = reference_weights(reference)
    (tmp_path / "config.json").write_text(json.dumps(content))
    save_file(tensors, tmp_path / "model.safetensors")
    try:
        config, weights = load_weights(ModelSource("tiny", "folder", tmp_path))
        ours = DecoderModel(config, weights, ops=select_ops("cpu", "torch"))
    except (UnsupportedModel, ConfigError, LoadingError) as refusal:
        assert is_refused(architecture, changes), refusal
        return

    assert not is_refused(architecture, changes)
    if (architecture, changes) in NO_REFERENCE:
        return
    assert reference is not None, "transformers refuses it, and we do not"
    num_tokens = min(NUM_TOKENS, config.max_context_len)
    ids = torch.arange(num_tokens) * 7 % content["vocab_size"]
    with torch.inference_mode():
        expected = reference(ids[None], return_dict=True).logits[0, -1]
    scores = PagedRunner(ours, [num_tokens]).step([(0, 0, ids.tolist())])[0]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_the_scores_tell_variations_apart() -> None:
    """Otherwise the comparison above would show little: weights and positions must matter."""
    made = [
        reference_model({"model_type": "qwen2", **BASE, **changes})
        for changes in (
            {},
            {"rms_norm_eps": 1e-2},
            {"rope_theta": 500.0},
            {"rope_scaling": YARN},
            {"rope_scaling": LLAMA3},
            {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2},
        )
    ]
    with torch.inference_mode():
        scores = [each(torch.arange(NUM_TOKENS)[None] * 7 % 48).logits[0, -1] for each in made]  # type: ignore[misc]
    for place, one in enumerate(scores):
        assert all((one - other).abs().max() > 1e-2 for other in scores[:place])


def reference_model(content: dict[str, Any]) -> torch.nn.Module | None:
    """The model as transformers makes it, with random weights that spread; ``None`` if it refuses to."""
    # The first is refused here before it is looked into; the second is about Python objects, and trips transformers.
    content = {name: value for name, value in content.items() if name not in ("quantization_config", "return_dict")}
    try:
        config = AutoConfig.for_model(**json.loads(json.dumps(content)))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(0)
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.data = 1 + 0.1 * noise if "norm" in name else noise * 2 / tensor.shape[-1] ** 0.5
        model(torch.zeros(1, 1, dtype=torch.int64), return_dict=True)
    except Exception:  # it has no single type for what it refuses, and some comes out of its depth
        return None
    return model


def reference_weights(model: Any) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM2": (
        "llama",
        {
            "_name_or_path": "x",
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
            "pretraining_tp": 1,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.42.3",
            "use_cache": True,
        },
    ),
    "Llama 3.2": ("llama", {"mlp_bias": False, "rope_scaling": LLAMA3, "pretraining_tp": 1, "attention_dropout": 0.0}),
    "older Llama": ("llama", {"max_sequence_length": 2048, "pad_token_id": -1, "rope_scaling": None}),
    "DeepSeek Coder": ("llama", {"rope_scaling": {"factor": 4.0, "type": "linear"}}),
    "Yarn Llama": ("llama", {"rope_scaling": {**YARN, "rope_type": None, "type": "yarn", "finetuned": True}}),
    "Mistral Nemo": ("mistral", {"head_dim": 16, "sliding_window": None, "tie_word_embeddings": False}),
    "Qwen2.5": ("qwen2", {"sliding_window": 32768, "max_window_layers": 70, "use_sliding_window": False}),
    "Qwen distilled": ("qwen2", {"use_mrope": False, "sliding_window": 4096, "max_window_layers": 28}),
    "Qwen3": ("qwen3", {"attention_bias": False, "max_window_layers": 36, "use_sliding_window": False}),
    "tuned by Unsloth": ("qwen3", {"unsloth_fixed": True, "unsloth_version": "2025.1", "quantization_config": None}),
    "old generation settings": ("llama", {"temperature": 0.9, "top_p": 0.6, "max_length": 4096, "do_sample": True}),
    "custom code beside": ("qwen2", {"auto_map": {"AutoConfig": "x.Y"}, "attn_implementation": "sdpa"}),
}
"""What published files of these families have besides their shape, in the words of those files."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_published_files_have_is_taken(name: str) -> None:
    architecture, fields = PUBLISHED[name]

    config = read_hf_config({"model_type": architecture, **BASE, **fields})

    assert config.sliding_window is None
