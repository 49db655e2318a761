"""What a GGUF file of the Llama family says, in Hugging Face terms: config keys, tensor names, row order.

The converter of llama.cpp stores the rows of query and key projections of "llama" files in another order, because its
rotary embedding pairs neighbouring rows (2i, 2i+1) where Hugging Face pairs the halves (i, i + head_dim/2) of a head.
:func:`halves_from_pairs` takes that back. Qwen files keep the Hugging Face order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from headway.models.config import UnsupportedModel, canonical_architecture
from headway.models.loading.errors import BadModelFile
from headway.models.loading.gguf_file import GgufFile, GgufTensor
from headway.models.loading.gguf_keys import check_keys
from headway.models.loading.gguf_rope import ROPE_FACTORS, gguf_rope_scaling
from headway.models.loading.lazy import TensorEntry

_PAIRED_ROWS = ("llama", "mistral")

_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

# Metadata key after the architecture's prefix -> key of config.json.
_NEEDED_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OTHER_KEYS = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def hf_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; a name without one is returned as it is."""
    if match := _LAYER_TENSOR.fullmatch(name):
        layer, part, suffix = match.groups()
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}" if part in _LAYER_NAMES else name
    stem, _, suffix = name.rpartition(".")
    return f"{_MODEL_NAMES[stem]}.{suffix}" if stem in _MODEL_NAMES else name


def halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder the rows of a projection from pairs to halves within each head.

    Args:
        rows: ``[num_heads * head_dim, ...]``, row ``2i + j`` of a head belonging to pair ``i``.
        num_heads: heads of this projection: key/value heads for the keys.

    Returns:
        The same shape, that row now being ``j * head_dim / 2 + i``.
    """
    split = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def gguf_entries(file: GgufFile, config: Mapping[str, Any]) -> dict[str, TensorEntry]:
    """All tensors of ``file`` by Hugging Face name, none of them read yet; ``config`` is :func:`gguf_config`'s."""
    heads_of = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    paired = config["model_type"] in _PAIRED_ROWS
    entries = {}
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:  # went into the config
            continue
        match = _LAYER_TENSOR.fullmatch(tensor.name)
        num_heads = heads_of.get(match[2]) if match and paired else None
        entries[hf_name(tensor.name)] = TensorEntry(
            path=file.path,
            shape=tensor.shape,
            kind=tensor.kind.name,
            plain=True,
            read=partial(_read, file, tensor, num_heads),
        )
    return entries


def _read(file: GgufFile, tensor: GgufTensor, num_heads: int | None) -> Any:
    import torch  # here, so that reading a config needs none

    values = file.read(tensor)
    return torch.from_numpy(values if num_heads is None else halves_from_pairs(values, num_heads))


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """The metadata of ``file`` as the content of a ``config.json``.

    Raises:
        UnsupportedModel: another architecture than those read here, or a variant of one.
        BadModelFile: metadata is missing or is of the wrong kind.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise BadModelFile(file.path, "metadata general.architecture is missing")
    read = partial(_number, file, name)
    if read("expert_count", 0):
        raise UnsupportedModel("mixture of experts", f"{file.path}: is a mixture of experts, which comes later")
    config: dict[str, Any] = {"model_type": canonical_architecture(name), "sliding_window": None}
    check_keys(file, name)
    config |= {hf: read(key) for key, hf in _NEEDED_KEYS.items()}
    config |= {hf: value for key, hf in _OTHER_KEYS.items() if (value := read(key, None)) is not None}
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("vocab_size", len(file.metadata.get("tokenizer.ggml.tokens", ())))
    head_dim = config.get("head_dim") or config["hidden_size"] // max(1, config["num_attention_heads"])
    config["head_dim"] = head_dim  # impossible numbers are left for ModelConfig to refuse
    if read("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel("value_length", f"{file.path}: keys and values of different width are not supported")
    config["partial_rotary_factor"] = read("rope.dimension_count", head_dim) / max(1, head_dim)
    if window := read("attention.sliding_window", None):
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
        if config["model_type"] == "llama":  # only Mistral among the models of this name has a window
            config["model_type"] = "mistral"
    config["rope_scaling"] = gguf_rope_scaling(file, name, config, read)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    config["eos_token_id"] = list(gguf_eos_ids(file))
    config["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    return config


def gguf_eos_ids(file: GgufFile) -> tuple[int, ...]:
    """Ids that the metadata names as the end of a text, of a turn or of a message."""
    named = (file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(token_id for token_id in named if token_id is not None))


_REQUIRED = object()


def _number(file: GgufFile, architecture: str, key: str, default: Any = _REQUIRED) -> Any:
    full_key = f"{architecture}.{key}"
    value = file.metadata.get(full_key, default)
    if value is _REQUIRED:
        raise BadModelFile(file.path, f"metadata {full_key} is missing")
    if isinstance(value, list):
        if any(item != value[0] for item in value):
            raise UnsupportedModel(full_key, f"{file.path}: {full_key} differs between layers, which is not supported")
        value = value[0]
    if value is not default and not isinstance(value, (int, float)):
        raise BadModelFile(file.path, f"metadata {full_key} is {value!r}, not a number")
    return value
