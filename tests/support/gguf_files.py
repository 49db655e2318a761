"""Tiny GGUF files, written as the converter of llama.cpp would write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

F32 = GGMLQuantizationType.F32

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 48, 4, 2, 16, 2

# What the metadata of such a file says, and a config.json of the same model would.
HF_CONFIG: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def pairs_from_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Row order of "llama" files: row i and row i + head_dim / 2 of a head become neighbours."""
    head_dim = rows.shape[0] // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return rows[order]


def random_tensors(
    *, tied: bool = False, qkv_bias: bool = False, qk_norm: bool = False, seed: int = 0
) -> dict[str, np.ndarray]:
    """Tensors of a tiny model by Hugging Face name."""
    rng = np.random.default_rng(seed)
    q_width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", q_width), ("k", kv_width), ("v", kv_width)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            if qkv_bias:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (rows,)
            if qk_norm and name != "v":
                shapes[f"{prefix}.self_attn.{name}_norm.weight"] = (HEAD_DIM,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (HIDDEN, q_width)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = shapes[f"{prefix}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{prefix}.input_layernorm.weight"] = shapes[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    architecture: str = "llama",
    kind_of: Callable[[str], GGMLQuantizationType] = lambda name: F32,
    extra: Callable[[GGUFWriter], None] = lambda writer: None,
    skip: frozenset[str] = frozenset(),
) -> Path:
    """Write a tiny model; ``kind_of`` picks a number format by Hugging Face name, ``extra`` adds to the file.

    ``skip`` names metadata keys, without the architecture's prefix, to leave out.
    """
    writer = GGUFWriter(path, architecture)
    numbers = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD_DIM,
        "vocab_size": VOCAB,
    }  # fmt: skip
    for key, value in numbers.items():
        if key not in skip:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 50000.0)
    for name, values in tensors.items():
        add_tensor(writer, gguf_name(name), _row_order(architecture, name, values), kind_of(name))
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: GGMLQuantizationType = F32) -> None:
    if kind == F32 or values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _row_order(architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if architecture != "llama":
        return values
    if ".q_proj." in name:
        return pairs_from_halves(values, HEADS)
    return pairs_from_halves(values, KV_HEADS) if ".k_proj." in name else values
