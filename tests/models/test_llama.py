"""The Llama family over a paged cache gives the tokens that Hugging Face transformers gives."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from headway.config import ConfigError
from headway.models.hf_config import read_hf_config
from headway.models.llama import DecoderModel
from headway.models.ops.registry import select_ops
from headway.models.tiny import make_tiny, random_weights
from tests.models.paged import PagedRunner, greedy

LINEAR = {"type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama tied, 3 heads per kv head": {"architecture": "llama", "tie": True, "hidden": 72, "heads": 9, "kv_heads": 3},
    "llama with biases": {"architecture": "llama", "overrides": {"attention_bias": True, "mlp_bias": True}},
    "llama, llama3 scaling": {"architecture": "llama", "overrides": {"rope_scaling": LLAMA3}},
    "llama, linear scaling": {
        "architecture": "llama",
        "overrides": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen2, yarn scaling": {"architecture": "qwen2", "overrides": {"rope_scaling": YARN}},
    "qwen3, wide heads": {"architecture": "qwen3", "head_dim": 32},
    "qwen3 tied, one kv head": {"architecture": "qwen3", "tie": True, "kv_heads": 1},
    "mistral": {"architecture": "mistral", "kv_heads": 4},
}
BACKENDS = ("torch", "native")
NUM_OUTPUTS = 24


@cache
def folder(variant: str) -> Path:
    return make_tiny(mkdtemp(prefix="headway-test-"), seed=len(variant), **VARIANTS[variant])


@cache
def model(variant: str, backend: str, weight_dtype: str = "float32") -> DecoderModel:
    config = read_hf_config(json.loads((folder(variant) / "config.json").read_text()))
    weights = load_file(folder(variant) / "model.safetensors")
    return DecoderModel(config, weights, ops=select_ops("cpu", backend), weight_dtype=weight_dtype)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 320, (length,), generator=generator).tolist() for length in (1, 70, 13)]


@cache
def expected(variant: str) -> list[list[int]]:
    reference = AutoModelForCausalLM.from_pretrained(folder(variant), dtype=torch.float32)
    reference.generation_config.eos_token_id = None
    outputs = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_OUTPUTS, do_sample=False)
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_expected_tokens_vary(variant: str) -> None:
    """Otherwise the comparisons below would show little."""
    for outputs in expected(variant):
        assert len(outputs) == NUM_OUTPUTS
        assert len(set(outputs)) > NUM_OUTPUTS // 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_greedy_tokens_are_those_of_transformers(variant: str, backend: str, chunk: int) -> None:
    made = model(variant, backend)
    assert [greedy(made, prompt, NUM_OUTPUTS, chunk) for prompt in prompts()] == expected(variant)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3, wide heads", "mistral"])
def test_greedy_tokens_do_not_depend_on_the_batch(variant: str, backend: str) -> None:
    """Requests enter one after the other, in chunks, and share every step with what the others are doing."""
    lengths = [len(prompt) + NUM_OUTPUTS for prompt in prompts()]
    runner, tokens = PagedRunner(model(variant, backend), lengths), prompts()
    computed, step = [0] * len(tokens), 0
    while any(len(row) < length for row, length in zip(tokens, lengths, strict=True)):
        step += 1
        live = [i for i in range(min(step, len(tokens))) if len(tokens[i]) < lengths[i]]
        rows = [(i, computed[i], tokens[i][computed[i] : computed[i] + 11]) for i in live]
        scores = runner.step(rows)
        for i, row_scores, (_, _, ids) in zip(live, scores, rows, strict=True):
            computed[i] += len(ids)
            if computed[i] == len(tokens[i]):
                tokens[i].append(int(row_scores.argmax()))
    outputs = [row[len(prompt) :] for row, prompt in zip(tokens, prompts(), strict=True)]
    assert outputs == expected(variant)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_native_scores_are_the_same_numbers_in_any_batch_and_chunk(dtype: str) -> None:
    made = model("llama", "native", dtype)
    prompt, others = prompts()[1], [prompts()[0], prompts()[2]]
    whole = PagedRunner(made, [100]).step([(0, 0, prompt)])[0]
    crowd = PagedRunner(made, [100, 9, 20])
    assert torch.equal(whole, crowd.step([(1, 0, others[0]), (0, 0, prompt), (2, 0, others[1])])[1])
    parts = PagedRunner(made, [100])
    for start in range(0, len(prompt), 9):
        scores = parts.step([(0, start, prompt[start : start + 9])])
    assert torch.equal(whole, scores[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_weights_compute_like_rounded_float32_ones(backend: str) -> None:
    config = model("llama", backend).config
    weights = {name: weight.half().float() for name, weight in random_weights(config, seed=3).items()}
    made = [
        DecoderModel(config, weights, ops=select_ops("cpu", backend), weight_dtype=dtype)
        for dtype in ("float32", "float16")
    ]
    scores = [PagedRunner(each, [40]).step([(0, 0, prompts()[2])]) for each in made]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-4)
    assert made[0].notes == made[1].notes == ()
    assert made[1].num_bytes == made[0].num_bytes // 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_beyond_float16_are_kept_in_float32_and_said(backend: str) -> None:
    config = model("llama", backend).config
    weights = random_weights(config, seed=3)
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = 7e4
    weights["model.embed_tokens.weight"][5, 5] = -1e6
    made = DecoderModel(config, weights, ops=select_ops("cpu", backend), weight_dtype="float16")
    assert made.notes == (
        "model.embed_tokens.weight: values beyond float16, kept in float32",
        "model.layers.1.mlp.gate_proj + model.layers.1.mlp.up_proj: values beyond float16, kept in float32",
    )
    assert PagedRunner(made, [1]).step([(0, 0, [1])]).isfinite().all()


def test_broken_checkpoints_are_refused_by_name() -> None:
    config = model("llama", "torch").config
    weights, ops = random_weights(config, seed=0), select_ops("cpu", "torch")
    missing = {name: weight for name, weight in weights.items() if name != "model.layers.1.self_attn.k_proj.weight"}
    with pytest.raises(ConfigError, match=r"layers.1.self_attn.k_proj.weight.* is missing from the checkpoint"):
        DecoderModel(config, missing, ops=ops)
    misshapen = weights | {"model.norm.weight": torch.ones(63)}
    with pytest.raises(ConfigError, match=r"model.norm.weight.* must have shape \(64,\) .* not \(63,\)"):
        DecoderModel(config, misshapen, ops=ops)


def test_bfloat16_weights_need_the_native_kernels_on_the_cpu() -> None:
    config = model("llama", "torch").config
    with pytest.raises(ConfigError, match="weight_dtype='bfloat16'"):
        DecoderModel(config, {}, ops=select_ops("cpu", "torch"), weight_dtype="bfloat16")


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_beyond_what_the_model_was_made_for_are_refused(backend: str) -> None:
    config = model("llama", "torch").config
    weights = random_weights(config, seed=0)
    made = DecoderModel(config, weights, ops=select_ops("cpu", backend), max_positions=10)
    assert PagedRunner(made, [10]).step([(0, 9, [1])]).isfinite().all()
    with pytest.raises(IndexError, match="position 10 is beyond the 10"):
        PagedRunner(made, [11]).step([(0, 10, [1])])
