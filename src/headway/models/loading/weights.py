"""From a model's place to its config and its tensors under their Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.config import ConfigError
from headway.models.config import ModelConfig, UnsupportedModel
from headway.models.hf_config import read_hf_config
from headway.models.loading.errors import BadModelFile, MissingTensor, UnexpectedTensor
from headway.models.loading.lazy import LazyWeights, TensorEntry
from headway.models.loading.safetensors_folder import folder_entries, read_json
from headway.models.loading.source import ModelSource

if TYPE_CHECKING:
    import torch

# Tables that old checkpoints carry along although they follow from the config.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
_HEAD = "lm_head.weight"


def load_config(source: ModelSource) -> ModelConfig:
    """The shape of the model at ``source``.

    Raises:
        UnsupportedModel: an architecture, or a feature of one, that is not computed here.
        BadModelFile: a file that is absent, damaged or inconsistent.
    """
    if source.kind == "gguf":
        return _open_gguf(source.path)[0]
    return _parse_config(source.path, read_json(source.path / "config.json"))


def load_weights(source: ModelSource, *, dtype: torch.dtype | None = None) -> tuple[ModelConfig, LazyWeights]:
    """The config and the tensors of the model at ``source``.

    Nothing is read yet but headers, in which presence and shape of every tensor are checked. Each access reads one
    tensor; those of a GGUF file are dequantised to float32 then.

    Args:
        source: from :func:`~headway.models.loading.source.resolve_model`.
        dtype: what to convert each tensor to. ``None``: as in a folder's files; float32 from a GGUF file.

    Raises:
        UnsupportedModel, BadModelFile: as :func:`load_config`.
        MissingTensor, UnexpectedTensor: the files do not hold what the config says.
    """
    if source.kind == "gguf":
        config, entries = _open_gguf(source.path)
    else:
        config, entries = load_config(source), folder_entries(source.path)
    check_entries(source.path, config, entries)
    return config, LazyWeights(entries, dtype)


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that a model of the Llama family computes with, layer by layer."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * dim, config.num_kv_heads * dim
    projections = {
        "self_attn.q_proj": (q_width, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_width, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_width, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_width, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, width in norms.items():
            yield f"{prefix}.{name}.weight", (width,)
        for name, (rows, columns, bias) in projections.items():
            yield f"{prefix}.{name}.weight", (rows, columns)
            if bias:
                yield f"{prefix}.{name}.bias", (rows,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield _HEAD, (config.vocab_size, hidden)


def check_entries(path: Path, config: ModelConfig, entries: Mapping[str, TensorEntry]) -> None:
    """Raise unless ``entries`` are just what ``config`` computes with.

    A tensor too many is refused as well: it means that the model computes something that we would leave out.
    """
    expected = []
    for name, shape in expected_tensors(config):  # stops at the first that is missing, however many a config claims
        if name not in entries:
            raise MissingTensor(path, name)
        expected.append(name)
        entry = entries[name]
        if entry.shape != shape:
            raise UnexpectedTensor(entry.path, name, f"has shape {entry.shape}, the config says {shape}")
        if not entry.plain:
            raise UnexpectedTensor(entry.path, name, f"is stored as {entry.kind}, not as plain floating-point numbers")
    known = frozenset((*expected, _HEAD))
    for name, entry in entries.items():
        if name not in known and not _DERIVED.fullmatch(name):
            raise UnexpectedTensor(entry.path, name, f"has no place in architecture {config.architecture!r}")


def _open_gguf(path: Path) -> tuple[ModelConfig, dict[str, TensorEntry]]:
    from headway.models.loading.gguf_file import GgufFile
    from headway.models.loading.gguf_model import gguf_config, gguf_entries

    file = GgufFile(path)
    try:
        content = gguf_config(file)
    except UnsupportedModel as error:
        raise _with_path(path, error) from error
    return _parse_config(path, content), gguf_entries(file, content)


def _parse_config(path: Path, content: Mapping[str, Any]) -> ModelConfig:
    try:
        return read_hf_config(content)
    except UnsupportedModel as error:
        raise _with_path(path, error) from error
    except ConfigError as error:
        raise BadModelFile(path, str(error)) from error


def _with_path(path: Path, error: UnsupportedModel) -> UnsupportedModel:
    message = str(error)
    return error if message.startswith(str(path)) else UnsupportedModel(error.feature, f"{path}: {message}")
