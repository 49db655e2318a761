"""Which metadata of a GGUF file says what a model computes, and that none of it is passed over.

Keys that begin with the architecture's name do; all others are about the file, the tokenizer or its origin. Zero, false
and empty mean "not there", as writers that write every key have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headway.models.config import UnsupportedModel
from headway.models.loading.gguf_file import GgufFile

USED = frozenset(
    {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "expert_count",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.dimension_count", "rope.freq_base",
        "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    }
)  # fmt: skip
"""Keys, without the architecture, that are read; what cannot be computed is refused where they are."""

IGNORED = frozenset(
    {
        "attention.layer_norm_epsilon",  # of another kind of norm
        "attention.sliding_window_pattern",  # which layers have the window; contexts are no longer than it here
        "pooling_type",  # of what is made of the last hidden states
        "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)
"""Keys without effect on the scores."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "attention.causal": (True,),
        "attention.output_scale": (1,),
        "embedding_scale": (1,),
        "logit_scale": (1,),
        "residual_scale": (1,),
    }
)
"""Key -> values under which it changes nothing."""


def check_keys(file: GgufFile, architecture: str) -> None:
    """Raise :class:`UnsupportedModel` for the first key that changes, or may change, what is computed.

    Args:
        file: the opened file.
        architecture: as the file calls it, which is what such keys begin with.
    """
    for full_key, value in file.metadata.items():
        key = full_key.removeprefix(f"{architecture}.")
        if key == full_key or key in USED or key in IGNORED:
            continue
        if value in NEUTRAL.get(key, ()) or _repeats(file, architecture, key, value):
            continue
        if _is_off(value) and key != "attention.causal":
            continue
        raise UnsupportedModel(
            full_key, f"{file.path}: metadata {full_key}={value!r} may change what the model computes: not supported"
        )


def _is_off(value: Any) -> bool:
    return not any(value) if isinstance(value, list) else not value


def _repeats(file: GgufFile, architecture: str, key: str, value: Any) -> bool:
    """Whether a key says only what another one says anyway."""
    twin = {
        "embedding_length_out": "embedding_length",
        "attention.key_length_swa": "attention.key_length",
        "attention.value_length_swa": "attention.value_length",
        "rope.dimension_count_swa": "rope.dimension_count",
        "rope.freq_base_swa": "rope.freq_base",
    }.get(key)
    if twin is not None:
        return bool(value == file.metadata.get(f"{architecture}.{twin}"))
    if key == "attention.scale":
        width = file.metadata.get(f"{architecture}.attention.key_length")
        return isinstance(width, int) and width > 0 and abs(value * width**0.5 - 1) < 1e-6
    return False
