"""The shape of a model: one frozen record for every architecture, read from a Hugging Face ``config.json``.

Loaders of other formats build the same record, either directly or by first writing Hugging Face keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headway.config import ConfigError

# Names under which an architecture is known outside: "architectures" and "model_type" of Hugging Face and
# "general.architecture" of GGUF.
ARCHITECTURE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "llama": "llama",
        "mistral": "mistral",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
    }
)

ROPE_SCALINGS = ("linear", "llama3", "yarn")

_MISSING = object()


class UnsupportedModel(ValueError):
    """The model asks for something this version does not compute.

    Attributes:
        feature: what it asks for, such as an architecture or a kind of position scaling.
    """

    def __init__(self, feature: str, message: str) -> None:
        super().__init__(message)
        self.feature = feature


def canonical_architecture(name: str) -> str:
    """Our name of an architecture that goes by ``name`` elsewhere; :class:`UnsupportedModel` if we have none."""
    if name not in ARCHITECTURE_ALIASES:
        known = ", ".join(sorted(set(ARCHITECTURE_ALIASES.values())))
        raise UnsupportedModel(name, f"model {name!r} is not supported: its architecture comes later (now: {known})")
    return ARCHITECTURE_ALIASES[name]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a decoder-only model looks like.

    Attributes:
        architecture: one of ``registry.supported_architectures()``.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: inner width of the feed-forward part.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: width of a head; even.
        rms_norm_eps: added to the mean square under the root.
        rope_theta: base of the rotary frequencies.
        rope_scaling: ``None``, or the Hugging Face keys of a scaling whose ``rope_type`` is in ``ROPE_SCALINGS``.
        max_position_embeddings: longest context, in tokens.
        tie_word_embeddings: whether the output head is the embedding.
        qkv_bias: whether the query, key and value projections have a bias.
        o_bias: the same for the attention output projection.
        mlp_bias: the same for the three feed-forward projections.
        qk_norm: whether queries and keys are normalised per head before rotation.
        eos_token_ids: ids that end a text; may be empty.
        bos_token_id: id that begins a text, if there is one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers",
            "num_heads", "num_kv_heads", "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(name, value, "must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError("num_kv_heads", self.num_kv_heads, f"must divide num_heads ({self.num_heads})")
        if self.head_dim % 2:
            raise ConfigError("head_dim", self.head_dim, "must be even, rotary embedding pairs its halves")
        if not self.rope_theta > 0:
            raise ConfigError("rope_theta", self.rope_theta, "must be above 0")
        if not self.rms_norm_eps >= 0:
            raise ConfigError("rms_norm_eps", self.rms_norm_eps, "must be at least 0")

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the content of a Hugging Face ``config.json`` (both the old and the version 5 rope keys).

        Raises:
            UnsupportedModel: an architecture, activation, position scaling, attention window or weight
                quantisation that is not computed here.
            ConfigError: a value that is missing or makes no sense, by its name here.
        """
        architecture = canonical_architecture(_architecture_name(config))
        _refuse_unsupported(config)
        max_positions = _required(config, "max_position_embeddings", 2048)
        num_layers = _required(config, "num_hidden_layers")
        _refuse_window(config, architecture, max_positions, num_layers)
        num_heads = _required(config, "num_attention_heads")
        hidden_size = _required(config, "hidden_size")
        default_head_dim = 128 if architecture == "qwen3" else hidden_size // max(1, num_heads)
        attention_bias = bool(config.get("attention_bias", False))
        theta, scaling = _rope(config, max_positions)
        return cls(
            architecture=architecture,
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_required(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_required(config, "num_key_value_heads", num_heads),
            head_dim=_required(config, "head_dim", default_head_dim),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=max_positions,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or attention_bias,
            o_bias=architecture != "qwen2" and attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=architecture == "qwen3",
            eos_token_ids=_token_ids(config.get("eos_token_id")),
            bos_token_id=config.get("bos_token_id"),
        )


def _architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [config.get("model_type")]
    if not isinstance(names[0], str):
        raise ConfigError("architectures", config.get("architectures"), "must name the model's architecture")
    return names[0]


def _required(config: Mapping[str, Any], name: str, default: object = _MISSING) -> Any:
    """Value of ``name``; absent and null mean ``default``, and without one they are refused."""
    value = config.get(name)
    if value is None:
        value = default
    if value is _MISSING:
        raise ConfigError(name, None, "is missing from the model's config.json")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
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


def _refuse_window(config: Mapping[str, Any], architecture: str, max_positions: int, num_layers: int) -> None:
    """Refuse a sliding window that would ever hide a token; one at least as long as the context never does."""
    window = config.get("sliding_window")
    if architecture in ("qwen2", "qwen3"):
        windowed_layers = num_layers > _required(config, "max_window_layers", 28)
        if not config.get("use_sliding_window", False) or not windowed_layers:
            window = None
    elif architecture == "llama":  # has no such thing and ignores the key
        window = None
    if window is not None and window < max_positions:
        raise UnsupportedModel(
            "sliding_window",
            f"sliding_window={window} hides tokens below max_position_embeddings={max_positions}; "
            "models with an attention window come later",
        )


def _rope(config: Mapping[str, Any], max_positions: int) -> tuple[float, Mapping[str, Any] | None]:
    """Base frequency and scaling, from ``rope_parameters`` (version 5) or ``rope_theta`` and ``rope_scaling``."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    partial = parameters.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModel("partial_rotary_factor", f"partial_rotary_factor={partial} is not supported, only 1 is")
    if kind == "default":
        return theta, None
    if kind not in ROPE_SCALINGS:
        known = ", ".join(ROPE_SCALINGS)
        raise UnsupportedModel(f"rope_type {kind}", f"rope_type={kind!r} is not supported, only default, {known} are")
    if kind != "linear":
        parameters.setdefault("original_max_position_embeddings", max_positions)
    return theta, {"rope_type": kind, **parameters}


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
