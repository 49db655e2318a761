"""Tiny random models as real checkpoint folders: for tests, examples and trying things out offline.

A folder holds what a downloaded model holds (config, safetensors, tokenizer with chat template), takes a fraction of
a second to make, and is the same for the same arguments. The words mean nothing, but greedy output varies from token
to token, so that an error in any layer shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from headway.config import ConfigError
from headway.models.config import ModelConfig, canonical_architecture
from headway.models.hf_config import read_hf_config

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_HF_NAMES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)
_TEXT = (
    "The quick brown fox jumps over the lazy dog. Then the other fox and the other dog rest in the sun. "
    "A request waits, runs, and is finished; another request waits for the next step, and the next. "
    "There is a token for the end of a text, and there are tokens for the turns of a conversation. "
)


def make_tiny(
    path: str | Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    vocab: int = 320,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    tie: bool = False,
    dtype: str = "float32",
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tiny random model.

    Args:
        path: folder to write into; made if missing.
        architecture: by any of its names.
        seed: of the weights.
        vocab: size of the vocabulary: 256 bytes, three special tokens, and merged pairs up to here.
        layers, hidden, heads, kv_heads: its shape; the feed-forward part is twice as wide as ``hidden``.
        head_dim: width of a head, by default ``hidden / heads``.
        tie: whether the output head is the embedding.
        dtype: of the weights in the file: "float32", "float16" or "bfloat16".
        overrides: further keys of ``config.json``, such as ``rope_scaling``.

    Returns:
        The folder.

    Raises:
        ConfigError: a vocabulary too small for the bytes, or a shape that fits no model.
        UnsupportedModel: an architecture that does not exist here.
    """
    if vocab < _SMALLEST_VOCAB:
        raise ConfigError("vocab", vocab, f"must be at least {_SMALLEST_VOCAB}: all bytes and the special tokens")
    config = _hf_config(canonical_architecture(architecture), vocab, layers, hidden, heads, kv_heads, head_dim, tie)
    config |= {"torch_dtype": dtype, **(overrides or {})}
    weights = random_weights(read_hf_config(config), seed)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    _write_json(folder / "generation_config.json", ends)
    save_file({name: w.to(getattr(torch, dtype)) for name, w in weights.items()}, folder / "model.safetensors")
    _write_tokenizer(folder, vocab)
    return folder


def random_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Random float32 weights by their Hugging Face names, scaled so that activations neither fade nor blow up."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in weight_shapes(config).items()}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint of the Llama family."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * dim, config.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, rows, columns, bias in (
        ("self_attn.q_proj", q_width, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_width, config.o_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ):
        layer[f"{name}.weight"] = (rows, columns)
        if bias:
            layer[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.1 * noise
    if name.endswith(".bias"):
        return 0.2 * noise
    # Wide enough that attention picks among tokens and each layer changes the stream: narrower ones repeat a token.
    return noise * (2 / math.sqrt(shape[1]))


def _hf_config(
    architecture: str, vocab: int, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int | None, tie: bool
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [_HF_NAMES[architecture]],
        "model_type": architecture,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tie,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    if architecture == "mistral":
        config["sliding_window"] = None
    return config


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """A byte-level BPE whose merges come from a few fixed sentences; any text can be written in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    text_end, _, turn_end = SPECIAL_TOKENS
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text_end,
        "eos_token": turn_end,
        "pad_token": text_end,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
