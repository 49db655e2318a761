"""From the content of a Hugging Face ``config.json`` to a :class:`~headway.models.config.ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headway.config import ConfigError
from headway.models.config import ModelConfig, UnsupportedModel, canonical_architecture
from headway.models.config_fields import check_fields
from headway.models.rope_parameters import positive, read_rope

FULL, SLIDING = "full_attention", "sliding_attention"

_DEFAULTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "llama": {"max_position_embeddings": 2048},
        "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
        "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
        "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
    }
)
"""What transformers takes where a file says nothing and architectures differ; null is something else."""


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read the content of a Hugging Face ``config.json`` (both the old and the version 5 rope keys).

    Raises:
        UnsupportedModel: an architecture, activation, position scaling or weight quantisation that is not computed
            here, or a field that is not known and may stand for such a thing.
        ConfigError: a value that is missing or makes no sense, by its name here.
    """
    architecture = canonical_architecture(_architecture_name(config))
    check_fields(config, architecture)
    _refuse_unsupported(config)
    defaults = _DEFAULTS[architecture]
    max_positions = _count(config, "max_position_embeddings", defaults["max_position_embeddings"])
    num_layers = _count(config, "num_hidden_layers")
    num_heads = _count(config, "num_attention_heads")
    hidden_size = _count(config, "hidden_size")
    num_kv_heads = config.get("num_key_value_heads", defaults.get("num_key_value_heads"))
    attention_bias = _flag(config, "attention_bias")
    theta, scaling = read_rope(config, max_positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=_count(config, "head_dim", defaults.get("head_dim", hidden_size // max(1, num_heads))),
        rms_norm_eps=positive("rms_norm_eps", config.get("rms_norm_eps", 1e-6), zero=True),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=max_positions,
        sliding_window=_sliding_window(config, architecture, num_layers),
        tie_word_embeddings=_flag(config, "tie_word_embeddings"),
        qkv_bias=architecture == "qwen2" or attention_bias,
        o_bias=architecture != "qwen2" and attention_bias,
        mlp_bias=_flag(config, "mlp_bias"),
        qk_norm=architecture == "qwen3",
        eos_token_ids=_token_ids(config.get("eos_token_id")),
        bos_token_id=config.get("bos_token_id"),
    )


def _architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [config.get("model_type")]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ConfigError("architectures", config.get("architectures"), "must name the model's architecture")
    return names[0]


def _count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number; absent and null mean ``default``, and without one they are refused."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(name, None, "is missing from the model's config.json")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(name, value, "must be a whole number")
    return value


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(name, value, "must be true or false")
    return bool(value)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(
            f"hidden_act {activation}", f"hidden_act={activation!r} is not supported, only 'silu' is"
        )
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        raise UnsupportedModel(
            f"quantization {method}",
            f"weights quantised with {method!r} are not supported; take the unquantised checkpoint or a GGUF file",
        )


def _sliding_window(config: Mapping[str, Any], architecture: str, num_layers: int) -> int | None:
    """The window of the layers that have one.

    ``layer_types`` says which those are; where it is absent, ``use_sliding_window`` and ``max_window_layers`` do for
    Qwen, and all layers are for Mistral.
    """
    kinds = config.get("layer_types")
    window = config.get("sliding_window", _DEFAULTS[architecture].get("sliding_window"))
    if window is not None:
        window = _count(config, "sliding_window", window)
    if kinds is not None:
        _check_layer_types(kinds, num_layers)
    if architecture == "llama":  # its code has no window, whatever the other keys say
        has_window = False
    elif architecture == "mistral":  # its code looks at nothing but the size
        has_window = window is not None
    else:
        if not _flag(config, "use_sliding_window"):
            window = None
        first = _count(config, "max_window_layers", 28)
        has_window = SLIDING in kinds if kinds is not None else window is not None and first < num_layers
    if kinds is not None and SLIDING in kinds and (not has_window or window is None):
        message = f"layer_types has {SLIDING!r}, but there is no sliding_window for it in architecture {architecture!r}"
        raise UnsupportedModel("layer_types", message)
    return window if has_window else None


def _check_layer_types(kinds: Any, num_layers: int) -> None:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError("layer_types", kinds, f"must be a list of num_hidden_layers ({num_layers}) kinds of layers")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise UnsupportedModel("layer_types", f"layers of kind {kind!r} are not supported, only {FULL!r} are")


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(each, int) or isinstance(each, bool) for each in ids):
        raise ConfigError("eos_token_id", value, "must be a token id, or a list of them")
    return tuple(ids)
