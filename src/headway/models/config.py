"""The shape of a model: one frozen record for every architecture.

It is read from a Hugging Face ``config.json`` (``hf_config.py``); loaders of other formats write its keys first.
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
        max_position_embeddings: longest context, in tokens, as the model's files have it; see ``max_context_len``.
        sliding_window: most tokens that one may attend to in some layer, itself included; ``None`` if none is hidden.
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
    sliding_window: int | None = None
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
        if self.sliding_window is not None and self.sliding_window < 2:
            raise ConfigError("sliding_window", self.sliding_window, "must be at least 2")
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

    @property
    def max_context_len(self) -> int:
        """Longest sequence that is computed as the model means it, in tokens.

        A scaling of positions reaches its original length times its factor, whether ``max_position_embeddings`` was
        raised accordingly or not; a sliding window is none for sequences that fit into it.
        """
        longest, scaling = self.max_position_embeddings, self.rope_scaling
        if scaling is not None and scaling["rope_type"] in ("linear", "yarn"):
            original = scaling.get("original_max_position_embeddings", longest)
            longest = max(longest, int(original * scaling["factor"]))
        return longest if self.sliding_window is None else min(longest, self.sliding_window)
