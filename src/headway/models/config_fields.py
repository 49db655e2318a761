"""Every field of a ``config.json`` that is known: used, without effect, or refused unless it is neutral.

A field that nobody here knows may change what a model computes, and a model that computes something else answers
wrongly without a word. So it is refused, unless its value says that it is off. docs/models.md has the rule for users;
``tests/models/test_config_fields.py`` varies every field that transformers documents and compares logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headway.models.config import UnsupportedModel

_FOR_ALL = frozenset(
    {
        "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
        "max_position_embeddings", "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
        "partial_rotary_factor", "quantization_config", "layer_types", "bos_token_id", "eos_token_id",
    }
)  # fmt: skip
_WINDOW = frozenset({"sliding_window", "use_sliding_window", "max_window_layers"})
USED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "llama": _FOR_ALL | {"attention_bias", "mlp_bias"},
        "mistral": _FOR_ALL | {"sliding_window"},
        "qwen2": _FOR_ALL | _WINDOW,
        "qwen3": _FOR_ALL | _WINDOW | {"attention_bias"},
    }
)
"""Architecture -> fields that decide what is computed; what cannot be computed is refused where they are read."""

_TRAINING = frozenset(
    {
        "attention_dropout", "initializer_range", "pretraining_tp", "gradient_checkpointing", "dropout",
        "resid_pdrop", "embd_pdrop", "attn_pdrop", "use_cache", "problem_type", "chunk_size_feed_forward",
    }
)  # fmt: skip
_METADATA = frozenset(
    {
        "transformers_version", "dtype", "torch_dtype", "name_or_path", "id2label", "label2id", "num_labels",
        "return_dict", "torchscript", "use_bfloat16", "is_decoder", "tokenizer_class", "prefix", "finetuning_task",
        "task_specific_params", "auto_map", "model_max_length", "max_sequence_length", "is_llama_config",
        "transformers.js_config", "unsloth_version", "unsloth_fixed", "license", "attn_implementation",
        "experts_implementation", "use_flash_attn", "use_flash_attention", "use_flash_attention_2",
        "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "decoder_start_token_id",
    }
)  # fmt: skip
_GENERATION = frozenset(
    {
        "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
        "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
        "suppress_tokens", "temperature", "top_k", "top_p", "typical_p", "bad_words_ids",
    }
)  # fmt: skip
_IGNORED_FOR_ALL = _TRAINING | _METADATA | _GENERATION
IGNORED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "llama": _IGNORED_FOR_ALL | {"sliding_window", "max_window_layers"},
        "mistral": _IGNORED_FOR_ALL | {"use_sliding_window", "max_window_layers"},
        "qwen2": _IGNORED_FOR_ALL | {"attention_bias"},  # always a bias on queries, keys and values, never on outputs
        "qwen3": _IGNORED_FOR_ALL,
    }
)
"""Architecture -> fields without effect on the numbers, in transformers as here."""

_IGNORED_BEGINNINGS = ("_", "output_")
_IGNORED_ENDINGS = ("_dropout",)

NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "use_sliding_window": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "is_encoder_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_encoder_decoder": (False,),
        "original_max_position_embeddings": (),  # belongs into the rope parameters
        "rope_interleaved": (False,),
        "use_mrope": (False,),
        "logit_scale": (1,),
        "logits_scaling": (1,),
        "residual_multiplier": (1,),
        "embedding_multiplier": (1,),
        "scale_emb": (1,),
        "num_experts": (0,),
        "num_local_experts": (0, 1),
        "no_rope_layer_interval": (0,),
        "attention_chunk_size": (0,),
        "attn_logit_softcapping": (),
        "final_logit_softcapping": (),
        "per_layer_config": (),
        "quantization": (),
        "compression_config": (),
    }
)
"""Field -> values under which it changes nothing, besides null; other values are refused."""


def check_fields(config: Mapping[str, Any], architecture: str) -> None:
    """Raise :class:`UnsupportedModel` for the first field that changes, or may change, what is computed."""
    known = USED[architecture] | IGNORED[architecture]
    for name, value in config.items():
        if name in known or name.startswith(_IGNORED_BEGINNINGS) or name.endswith(_IGNORED_ENDINGS):
            continue
        if _is_off(value) or (name in NEUTRAL and value in NEUTRAL[name]):
            continue
        if name in NEUTRAL:
            fine = ", ".join(map(repr, (*NEUTRAL[name], None)))
            message = f"{name}={_short(value)} is not supported in architecture {architecture!r}, only {fine}"
        else:
            message = (
                f"{name}={_short(value)} is not known in architecture {architecture!r} and may change what the model"
                " computes; remove it from config.json if it has no effect"
            )
        raise UnsupportedModel(name, message)


def _is_off(value: Any) -> bool:
    """Whether a value says that something is not there; a number may mean anything."""
    return value is None or value is False or value in ("", [], {})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
