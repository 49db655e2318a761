"""Hugging Face folders: one file, shards, and what a damaged or foreign folder is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headway.models.config import UnsupportedModel
from headway.models.loading import BadModelFile, MissingTensor, ModelSource, UnexpectedTensor, load_config, load_weights
from headway.models.loading.safetensors_folder import INDEX_NAME
from headway.models.loading.weights import expected_tensors
from tests.support.gguf_files import HF_CONFIG, random_tensors

CONFIG = {**HF_CONFIG, "model_type": "llama", "rope_theta": 10000.0}


def torch_tensors(**options: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in random_tensors(**options).items()}


def write_folder(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] = CONFIG) -> ModelSource:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return ModelSource("tiny", "folder", folder)


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3) -> ModelSource:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        mine, file = names[shard::shards], f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in mine}, folder / file)
        weight_map |= dict.fromkeys(mine, file)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return ModelSource("tiny", "folder", folder)


@pytest.mark.parametrize("write", [write_folder, write_shards])
def test_tensors_come_back_equal_in_their_own_dtype(tmp_path: Path, write: Any) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in torch_tensors().items()}

    config, weights = load_weights(write(tmp_path, tensors))

    assert config.num_layers == 2
    assert sorted(weights) == sorted(tensors)
    for name, tensor in tensors.items():
        assert weights[name].dtype == torch.bfloat16
        assert torch.equal(weights[name], tensor), name


def test_shapes_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    for changes in (
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"model_type": "qwen3"},
        {"model_type": "mistral", "sliding_window": None},
    ):
        content = {**CONFIG, **changes}
        (tmp_path / "config.json").write_text(json.dumps(content))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**content))
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if content.get("tie_word_embeddings"):
            del shapes["lm_head.weight"]

        assert dict(expected_tensors(load_config(ModelSource("tiny", "folder", tmp_path)))) == shapes


def test_tables_that_follow_from_the_config_and_a_tied_head_are_let_through(tmp_path: Path) -> None:
    tensors = torch_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    config, _ = load_weights(write_folder(tmp_path, tensors, {**CONFIG, "tie_word_embeddings": True}))

    assert config.tie_word_embeddings


def test_missing_tensor_names_folder_and_tensor(tmp_path: Path) -> None:
    tensors = torch_tensors()
    del tensors["model.norm.weight"]

    with pytest.raises(MissingTensor, match=r"tensor 'model\.norm\.weight' is missing") as caught:
        load_weights(write_folder(tmp_path, tensors))
    assert caught.value.path == tmp_path


def test_wrong_shape_names_the_file(tmp_path: Path) -> None:
    tensors = torch_tensors()
    tensors["model.norm.weight"] = torch.ones(65)

    with pytest.raises(UnexpectedTensor, match=r"model\.safetensors: .*has shape \(65,\), the config says \(64,\)"):
        load_weights(write_folder(tmp_path, tensors))


def test_bias_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnexpectedTensor, match=r"k_proj\.bias' has no place in architecture 'llama'"):
        load_weights(write_folder(tmp_path, torch_tensors(qkv_bias=True)))


def test_numbers_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    tensors = torch_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    with pytest.raises(UnexpectedTensor, match="is stored as F8_E4M3"):
        load_weights(write_folder(tmp_path, tensors))


def test_cut_file(tmp_path: Path) -> None:
    source = write_folder(tmp_path, torch_tensors())
    file = tmp_path / "model.safetensors"
    for kept in (4, 100, file.stat().st_size - 10):
        file.write_bytes(file.read_bytes()[:kept].ljust(kept, b" "))
        with pytest.raises(BadModelFile, match=r"model\.safetensors: is not a whole safetensors file"):
            load_weights(source)
        write_folder(tmp_path, torch_tensors())


def test_absent_shard(tmp_path: Path) -> None:
    source = write_shards(tmp_path, torch_tensors())
    (tmp_path / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(BadModelFile, match=r"model-00002-of-00003\.safetensors: does not exist"):
        load_weights(source)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_index_cannot_point_outside_its_folder(tmp_path: Path, name: str) -> None:
    source = write_shards(tmp_path, torch_tensors())
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))

    with pytest.raises(BadModelFile, match="which is not a file of its own folder"):
        load_weights(source)


def test_index_without_a_map(tmp_path: Path) -> None:
    source = write_shards(tmp_path, torch_tensors())
    (tmp_path / INDEX_NAME).write_text("{}")

    with pytest.raises(BadModelFile, match="has no weight_map"):
        load_weights(source)


def test_tensor_in_two_files(tmp_path: Path) -> None:
    source = write_folder(tmp_path, torch_tensors())
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())

    with pytest.raises(BadModelFile, match=r"b\.safetensors: tensor '.*' is in a\.safetensors too"):
        load_weights(source)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    source = write_folder(tmp_path, {})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"holds no \*\.safetensors$"):
        load_weights(source)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    with pytest.raises(BadModelFile, match=r"pickled weights .* are not read"):
        load_weights(source)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "cannot be read as JSON"), ("[]", "must hold a JSON object"), ("{}", "must name the model's architecture")],
)
def test_bad_config(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(BadModelFile, match=reason):
        load_config(ModelSource("tiny", "folder", tmp_path))


def test_unknown_architecture_names_the_folder(tmp_path: Path) -> None:
    source = write_folder(tmp_path, torch_tensors(), {**CONFIG, "model_type": "rwkv7"})

    with pytest.raises(UnsupportedModel, match="rwkv7") as caught:
        load_weights(source)
    assert str(caught.value).startswith(str(tmp_path))
