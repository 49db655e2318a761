"""Which rotary position embedding a ``config.json`` asks for: old keys (``rope_theta``, ``rope_scaling``) and new ones.

Every key that changes the frequencies is either taken or refused; none is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headway.config import ConfigError
from headway.models.config import ROPE_SCALINGS, UnsupportedModel

_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "default": frozenset(),
        "linear": frozenset({"factor", "original_max_position_embeddings"}),
        "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        "yarn": frozenset(
            {
                "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
                "mscale_all_dim", "truncate",
            }
        ),
    }
)  # fmt: skip
"""Kind of scaling -> what it is computed from."""

_REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor",),
    }
)
_ABOVE_ZERO = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"finetuned": (True, False), "attn_factor": (1,), "extrapolation_factor": (1,), "partial_rotary_factor": (1,)}
)
"""Key -> values under which it changes nothing, besides null."""


def read_rope(config: Mapping[str, Any], max_positions: int) -> tuple[float, Mapping[str, Any] | None]:
    """Base frequency, and the scaling: its ``rope_type`` and what that is computed from; ``None`` if there is none.

    Args:
        config: content of a ``config.json``.
        max_positions: its ``max_position_embeddings``.

    Raises:
        UnsupportedModel: a kind of scaling, or a key of one, that is not computed here.
        ConfigError: a value that is missing or makes no sense.
    """
    given = _given(config)
    theta = positive("rope_theta", _first(given.pop("rope_theta", None), config.get("rope_theta"), 10000.0))
    kind = _first(given.pop("rope_type", None), given.pop("type", None), "default")
    given.pop("type", None)
    partial = _first(given.pop("partial_rotary_factor", None), config.get("partial_rotary_factor"), 1)
    if partial != 1:
        raise UnsupportedModel("partial_rotary_factor", f"partial_rotary_factor={partial} is not supported, only 1 is")
    if kind not in _KEYS:
        known = ", ".join(ROPE_SCALINGS)
        raise UnsupportedModel(f"rope_type {kind}", f"rope_type={kind!r} is not supported, only default, {known} are")
    scaling = {key: value for key, value in given.items() if value is not None}
    _check_keys(kind, scaling)
    if kind == "default":
        return theta, None
    if kind in ("llama3", "yarn"):
        scaling.setdefault("original_max_position_embeddings", max_positions)
    if kind == "yarn" and "factor" not in scaling and "factor" in given:  # null: what the lengths say
        scaling["factor"] = max_positions / positive("original", scaling["original_max_position_embeddings"])
    _check_values(kind, scaling)
    return theta, {"rope_type": kind, **{key: value for key, value in scaling.items() if key in _KEYS[kind]}}


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope keys, from wherever they stand."""
    found = [config[name] for name in ("rope_scaling", "rope_parameters") if config.get(name)]
    if any(not isinstance(each, Mapping) for each in found):
        raise ConfigError("rope_scaling", found[0], "must be an object")
    if len(found) == 2 and dict(found[0]) != dict(found[1]):
        raise ConfigError("rope_scaling", found[0], f"contradicts rope_parameters ({found[1]!r})")
    return dict(found[0]) if found else {}


def _check_keys(kind: str, scaling: Mapping[str, Any]) -> None:
    for key, value in scaling.items():
        if isinstance(value, Mapping):
            message = f"rope parameters of their own for {key!r} are not supported, only one set for all layers"
            raise UnsupportedModel(f"rope parameter {key}", message)
        if key not in _KEYS[kind] and value not in _NEUTRAL.get(key, ()):
            message = f"rope parameter {key}={value!r} is not supported with rope_type={kind!r}"
            raise UnsupportedModel(f"rope parameter {key}", message)


def _check_values(kind: str, scaling: Mapping[str, Any]) -> None:
    for key in _REQUIRED[kind]:
        if key not in scaling:
            raise ConfigError(f"rope_scaling.{key}", None, f"is missing, and rope_type {kind!r} needs it")
    for key, value in scaling.items():
        if key == "truncate":
            if not isinstance(value, bool):
                raise ConfigError("rope_scaling.truncate", value, "must be true or false")
        elif key in _KEYS[kind]:
            positive(f"rope_scaling.{key}", value, zero=key not in _ABOVE_ZERO)
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise ConfigError("rope_scaling.high_freq_factor", scaling["high_freq_factor"], "must be above low_freq_factor")
    if kind == "yarn" and (scaling.get("beta_fast") or 32) < (scaling.get("beta_slow") or 1):
        raise ConfigError("rope_scaling.beta_fast", scaling.get("beta_fast"), "must be at least beta_slow")


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """``value`` as a number; :class:`ConfigError` unless it is one above 0 (or, with ``zero``, at least 0)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(name, value, "must be a number")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(name, value, f"must be {'at least' if zero else 'above'} 0")
    return float(value)


def _first(*values: Any) -> Any:
    """The first that is not null."""
    return next((value for value in values if value is not None), None)
