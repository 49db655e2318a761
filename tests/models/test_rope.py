"""Rotary frequencies against those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from headway.models.hf_config import read_hf_config
from headway.models.rope import rope_table

SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn with options": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    "yarn with a given magnitude": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_table_is_that_of_transformers(name: str, head_dim: int) -> None:
    parameters = {**SCALINGS[name], "rope_theta": 500000.0}
    shape = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": 65536}
    reference = LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters=dict(parameters)))
    positions = torch.tensor([[0, 1, 17, 900]])
    cos, sin = reference(torch.zeros(1), positions)
    config = read_hf_config(
        {**shape, "model_type": "llama", "rope_parameters": parameters, "vocab_size": 9, "intermediate_size": 9}
        | {"num_hidden_layers": 1}
    )
    table = rope_table(config, 901)[positions[0]]
    half = head_dim // 2
    torch.testing.assert_close(table[:, 0], cos[0, :, :half], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(table[:, 1], sin[0, :, :half], rtol=1e-6, atol=1e-6)
