"""Rotary position embedding: the frequencies of each kind of scaling, and the table of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headway.models.config import ModelConfig


def rope_table(config: ModelConfig, num_positions: int) -> Tensor:
    """Cosines and sines of positions ``0 .. num_positions - 1``: float32[num_positions, 2, head_dim / 2].

    A table rather than arithmetic per step, so that a position's values never depend on its place in a batch.
    """
    frequencies, magnitude = inverse_frequencies(config)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1) * magnitude


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Angle per position of each pair, float32[head_dim / 2], and the factor on cosines and sines."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    base = 1.0 / torch.pow(config.rope_theta, steps)
    scaling = config.rope_scaling
    if scaling is None:
        return base, 1.0
    if scaling["rope_type"] == "linear":
        return base / scaling["factor"], 1.0
    if scaling["rope_type"] == "llama3":
        return _llama3(base, config), 1.0
    return _yarn(base, config)


def _llama3(base: Tensor, config: ModelConfig) -> Tensor:
    """Llama 3.1: long waves are slowed by ``factor``, short ones kept, those between blended."""
    scaling = config.rope_scaling
    assert scaling is not None
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factor = float(scaling["factor"])
    turns = scaling["original_max_position_embeddings"] * base / (2 * math.pi)
    keep: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * base / factor + keep * base


def _yarn(base: Tensor, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): blend by dimension between ``beta_fast`` and ``beta_slow`` turns, warm attention."""
    scaling = config.rope_scaling
    assert scaling is not None
    length, factor = scaling["original_max_position_embeddings"], scaling["factor"]

    def pair_turning(turns: float) -> float:
        """Index of the pair that makes this many turns within the original length."""
        return config.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = pair_turning(scaling.get("beta_fast") or 32), pair_turning(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    pairs = torch.arange(config.head_dim // 2, dtype=torch.float32)
    slow = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    keep = 1 - slow
    return (1 / (factor * (1 / base))) * (1 - keep) + base * keep, _yarn_magnitude(factor, scaling)


def _yarn_magnitude(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return magnitude(1.0)
