"""Tiny models are real checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from headway.config import ConfigError
from headway.models.config import UnsupportedModel
from headway.models.hf_config import read_hf_config
from headway.models.registry import supported_architectures
from headway.models.tiny import make_tiny, weight_shapes


@pytest.mark.parametrize("architecture", supported_architectures())
def test_config_is_read_alike_here_and_by_transformers(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny(tmp_path, architecture, layers=3, head_dim=32)
    config = read_hf_config(json.loads((folder / "config.json").read_text()))
    assert (config.architecture, config.num_layers, config.head_dim) == (architecture, 3, 32)
    assert read_hf_config(AutoConfig.from_pretrained(folder).to_dict()) == config
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == weight_shapes(config)


def test_same_arguments_same_files(tmp_path: Path) -> None:
    first, again, other = (make_tiny(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_dtype_of_the_file(tmp_path: Path) -> None:
    weights = load_file(make_tiny(tmp_path, dtype="bfloat16") / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_tokenizer_writes_any_text_and_knows_turns(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny(tmp_path, vocab=300))
    assert len(tokenizer) == 300
    for text in ("The quick fox.", "Grüße, 世界 🦊\n\ttab", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    turns = [{"role": "user", "content": "Hi"}]
    written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert written == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id] == [2]


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vocab=258 .* at least 259"):
        make_tiny(tmp_path, vocab=258)
    with pytest.raises(UnsupportedModel, match="gemma3"):
        make_tiny(tmp_path, "gemma3")
    with pytest.raises(ConfigError, match="num_kv_heads"):
        make_tiny(tmp_path, heads=4, kv_heads=3)
