"""The scaling of positions in a GGUF file, as rope parameters of a ``config.json``.

llama.cpp is the measure: without a type a factor is linear, a factor of 0 is none, and type "none" never scales. YaRN
scales cosines and sines by ``1 + 0.1 ln(factor)``, times ``attn_factor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from headway.models.config import UnsupportedModel
from headway.models.loading.errors import BadModelFile
from headway.models.loading.gguf_file import GgufFile

ROPE_FACTORS = "rope_freqs.weight"
"""Name of the tensor that holds divisors of the rotary frequencies."""

_LENGTH_KEY = {"rope.scaling.original_context_length": "original_max_position_embeddings"}
_YARN_KEYS = {
    **_LENGTH_KEY,
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_UNSET = -1.0
"""What llama.cpp writes for "nothing was said"."""

_WITHOUT_SCALING: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"attn_factor": (0, 1), "yarn_attn_factor": (0, 1, _UNSET), "yarn_log_multiplier": (0,)}
)

# Llama 3.1 and later stretch the slow rotary frequencies only. Files carry the resulting divisors, not the rule's
# parameters; these are the ones all such models were released with, and _llama3 checks that they fit.
_LLAMA3_RULE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

Read = Callable[[str, Any], Any]
"""Gives the number under a key without the architecture's prefix, or the default."""


def gguf_rope_scaling(
    file: GgufFile, architecture: str, config: Mapping[str, Any], read: Read
) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a ``config.json`` that says the same; ``None`` for no scaling.

    Args:
        file: the opened file.
        architecture: as the file calls it.
        config: the keys of ``config.json`` found so far: ``head_dim`` and perhaps ``rope_theta``.
        read: for metadata.

    Raises:
        UnsupportedModel: a scaling that is not computed here.
        BadModelFile: a factor that makes no sense.
    """
    kind = file.metadata.get(f"{architecture}.rope.scaling.type") or "linear"
    factor = float(read("rope.scaling.factor", None) or read("rope.scale_linear", None) or 1.0)
    if not (math.isfinite(factor) and factor > 0):
        raise BadModelFile(file.path, f"metadata {architecture}.rope.scaling.factor is {factor}, which is no factor")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"rope_type {kind}", f"{file.path}: rope_type={kind!r} is not supported")
    is_scaled = kind != "none" and factor != 1.0
    neutral = _neutral(kind, factor) if is_scaled else _WITHOUT_SCALING
    for key, values in neutral.items():
        value = read(f"rope.scaling.{key}", None)
        if value is not None and not any(math.isclose(value, one, rel_tol=1e-6) for one in values):
            full_key = f"{architecture}.rope.scaling.{key}"
            message = f"{file.path}: metadata {full_key}={value} is not supported with rope_type={kind!r}"
            raise UnsupportedModel(full_key, message)
    if ROPE_FACTORS in file.tensors:
        if is_scaled:
            message = f"{file.path}: frequency divisors and a scaling of type {kind!r} at once are not supported"
            raise UnsupportedModel("rope_freqs", message)
        return _llama3(file, config)
    if not is_scaled:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    keys = _YARN_KEYS if kind == "yarn" else _LENGTH_KEY
    scaling |= {hf: value for key, hf in keys.items() if (value := read(key, None)) not in (None, 0, _UNSET)}
    if kind == "yarn" and (attn_factor := read("rope.scaling.attn_factor", None)) not in (None, 0, 1):
        scaling["attention_factor"] = attn_factor * _magnitude(factor)
    return scaling


def _neutral(kind: str, factor: float) -> Mapping[str, tuple[float, ...]]:
    """Keys under ``rope.scaling`` that must have one of these values, if they are there.

    What ``yarn_attn_factor`` means differs between writers and readers (the whole magnitude, a factor on it, nothing):
    it is taken where all agree. ``yarn_log_multiplier`` belongs to architectures that are not read here.
    """
    if kind == "linear":
        return {**_WITHOUT_SCALING, "yarn_ext_factor": (0, _UNSET)}
    magnitude = _magnitude(factor)
    return {"yarn_ext_factor": (1, _UNSET), "yarn_attn_factor": (magnitude, _UNSET), "yarn_log_multiplier": (0,)}


def _magnitude(factor: float) -> float:
    return 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0


def _llama3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """The Llama 3 rule that yields the divisors in the file; see ``_LLAMA3_RULE``.

    Raises:
        UnsupportedModel: they follow from no factor under that rule.
    """
    divisors = file.read(file.tensors[ROPE_FACTORS]).reshape(-1)
    factor = float(divisors.max(initial=1.0))
    half = len(divisors)
    wavelengths = 2 * math.pi * config.get("rope_theta", 10000.0) ** (np.arange(half) / max(1, half))
    turns = _LLAMA3_RULE["original_max_position_embeddings"] / wavelengths
    low, high = _LLAMA3_RULE["low_freq_factor"], _LLAMA3_RULE["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - blend) / factor + blend)
    if half != config["head_dim"] // 2 or not np.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedModel(
            "rope_freqs", f"{file.path}: its rotary frequency divisors follow no rule known here (largest: {factor:g})"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3_RULE}
