"""GGUF files: number formats, row order, names, metadata, and what a damaged or foreign file is told."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize

from headway.models.config import ModelConfig, UnsupportedModel
from headway.models.hf_config import read_hf_config
from headway.models.loading import (
    BadModelFile,
    LoadingError,
    MissingTensor,
    ModelSource,
    UnexpectedTensor,
    load_config,
    load_weights,
)
from headway.models.loading.gguf_file import GgufFile
from headway.models.loading.gguf_model import halves_from_pairs, hf_name
from tests.support.gguf_files import (
    GGUF_NAMES,
    HEAD_DIM,
    HEADS,
    HF_CONFIG,
    KV_HEADS,
    VOCAB,
    add_tensor,
    gguf_name,
    pairs_from_halves,
    random_tensors,
    write_gguf,
)

ARCHITECTURES = {
    "llama": {"tied": False},
    "qwen2": {"qkv_bias": True, "tied": True},
    "qwen3": {"qk_norm": True},
}


def source(path: Path) -> ModelSource:
    return ModelSource(path.stem, "gguf", path)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "llama.gguf", random_tensors())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tensors_come_back_equal_under_their_hugging_face_names(tmp_path: Path, architecture: str) -> None:
    tensors = random_tensors(**ARCHITECTURES[architecture])
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture)

    _, weights = load_weights(source(path))

    assert set(weights) == set(tensors)
    for name, values in tensors.items():
        assert torch.equal(weights[name], torch.from_numpy(values)), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config_equals_that_of_the_hugging_face_form(tmp_path: Path, architecture: str) -> None:
    options = ARCHITECTURES[architecture]
    path = write_gguf(tmp_path / "m.gguf", random_tensors(**options), architecture=architecture)
    expected = read_hf_config(
        {
            **HF_CONFIG,
            "model_type": architecture,
            "rope_theta": 50000.0,
            "rms_norm_eps": float(np.float32(1e-5)),
            "tie_word_embeddings": bool(options.get("tied")),
        }
    )

    assert load_config(source(path)) == expected


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1])
def test_quantised_tensors_are_what_their_format_says(tmp_path: Path, kind: Kind) -> None:
    tensors = random_tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors, kind_of=lambda name: kind)

    _, weights = load_weights(source(path))

    name = "model.layers.1.mlp.down_proj.weight"
    assert weights[name].dtype == torch.float32
    assert torch.equal(weights[name], torch.from_numpy(dequantize(quantize(tensors[name], kind), kind)))
    keys = "model.layers.0.self_attn.k_proj.weight"  # quantised per row, so reordering rows commutes with it
    assert torch.equal(weights[keys], torch.from_numpy(dequantize(quantize(tensors[keys], kind), kind)))


def test_weights_can_be_asked_for_in_another_dtype(llama: Path) -> None:
    _, weights = load_weights(source(llama), dtype=torch.bfloat16)

    assert weights["model.norm.weight"].dtype == torch.bfloat16


def test_a_tensor_may_be_written_to_without_touching_the_file(llama: Path) -> None:
    _, weights = load_weights(source(llama))
    before = weights["model.norm.weight"].clone()

    weights["model.norm.weight"].zero_()

    assert torch.equal(weights["model.norm.weight"], before)


@pytest.mark.parametrize("num_heads", [HEADS, KV_HEADS, 1])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_row_order_is_taken_back(num_heads: int, columns: tuple[int, ...]) -> None:
    rows = np.arange(num_heads * HEAD_DIM * max(1, sum(columns)), dtype=np.float32)
    rows = rows.reshape(num_heads * HEAD_DIM, *columns)
    stored = pairs_from_halves(rows, num_heads)

    assert not np.array_equal(stored, rows)
    assert np.array_equal(halves_from_pairs(stored, num_heads), rows)


def test_query_and_key_biases_are_reordered_too(tmp_path: Path) -> None:
    tensors = random_tensors(qkv_bias=True)
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.o_proj.bias"] = np.ones(64, np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors)

    _, weights = load_weights(source(path))

    for part in "qkv":
        name = f"model.layers.1.self_attn.{part}_proj.bias"
        assert torch.equal(weights[name], torch.from_numpy(tensors[name])), name


def test_names_of_every_part_are_known() -> None:
    for hf, gguf in GGUF_NAMES.items():
        if hf.startswith("model.") or hf == "lm_head":
            assert hf_name(f"{gguf}.weight") == f"{hf}.weight"
        else:
            assert hf_name(f"blk.17.{gguf}.weight") == f"model.layers.17.{hf}.weight"
    assert hf_name("blk.0.ffn_gate_exps.weight") == "blk.0.ffn_gate_exps.weight"
    assert gguf_name("model.layers.3.mlp.up_proj.bias") == "blk.3.ffn_up.bias"


def test_membership_reads_no_tensor(llama: Path) -> None:
    _, weights = load_weights(source(llama))
    weights.entries = {name: None for name in weights}  # type: ignore[assignment, misc]

    assert "lm_head.weight" in weights
    assert "nothing" not in weights


class TestMetadata:
    """Metadata that changes what is computed."""

    def config(self, tmp_path: Path, architecture: str = "llama", **entries: Any) -> ModelConfig:
        def extra(writer: GGUFWriter) -> None:
            for key, value in entries.items():
                full_key = key.replace("__", ".")
                if isinstance(value, str):
                    writer.add_string(full_key, value)
                elif isinstance(value, float):
                    writer.add_float32(full_key, value)
                elif isinstance(value, list):
                    writer.add_array(full_key, value)
                elif isinstance(value, np.ndarray):
                    add_tensor(writer, full_key, value)
                else:
                    writer.add_uint32(full_key, value)

        return load_config(source(write_gguf(tmp_path / "m.gguf", {}, architecture=architecture, extra=extra)))

    def test_end_of_turn_counts_as_end(self, tmp_path: Path) -> None:
        config = self.config(
            tmp_path, tokenizer__ggml__eos_token_id=2, tokenizer__ggml__eot_token_id=7, tokenizer__ggml__bos_token_id=1
        )

        assert config.eos_token_ids == (2, 7)
        assert config.bos_token_id == 1

    def test_head_width_may_differ_from_hidden_size_over_heads(self, tmp_path: Path) -> None:
        config = self.config(tmp_path, "qwen3", qwen3__attention__key_length=16, qwen3__attention__value_length=16)

        assert config.head_dim == 16

    def test_yarn(self, tmp_path: Path) -> None:
        config = self.config(
            tmp_path,
            llama__rope__scaling__type="yarn",
            llama__rope__scaling__factor=4.0,
            llama__rope__scaling__original_context_length=32,
        )

        assert config.rope_scaling == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

    def test_llama3_rule_is_recovered_from_divisors(self, tmp_path: Path) -> None:
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rule = {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        reference = LlamaConfig(
            hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters={"rope_theta": 50000.0, **rule}
        )
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](reference, device="cpu")
        divisors = (50000.0 ** -(np.arange(8) / 8) / stretched.numpy()).astype(np.float32)

        config = self.config(tmp_path, rope_freqs__weight=divisors)

        assert config.rope_scaling == rule

    def test_other_divisors_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModel, match="divisors follow no rule"):
            self.config(tmp_path, rope_freqs__weight=np.linspace(1, 9, 8, dtype=np.float32))

    @pytest.mark.parametrize(
        ("entries", "feature"),
        [
            ({"llama__expert_count": 8}, "mixture of experts"),
            ({"llama__attention__value_length": 32}, "value_length"),
            ({"llama__rope__scaling__type": "longrope"}, "rope_type longrope"),
            ({"split__count": 3}, "split GGUF"),
        ],
    )
    def test_variants_we_do_not_compute_are_refused(
        self, tmp_path: Path, entries: dict[str, Any], feature: str
    ) -> None:
        with pytest.raises(UnsupportedModel, match=r"m\.gguf: ") as caught:
            self.config(tmp_path, **entries)

        assert caught.value.feature == feature

    def test_architecture_that_comes_later(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModel, match=r"m\.gguf: .*'gemma3' is not supported.*comes later"):
            self.config(tmp_path, "gemma3")

    def test_missing_metadata_is_named(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", {}, skip=frozenset({"attention.head_count"}))

        with pytest.raises(BadModelFile, match=r"metadata llama\.attention\.head_count is missing"):
            load_config(source(path))

    def test_impossible_metadata_is_named(self, tmp_path: Path) -> None:
        path = write_gguf(
            tmp_path / "m.gguf",
            {},
            skip=frozenset({"attention.head_count_kv"}),
            extra=lambda writer: writer.add_uint32("llama.attention.head_count_kv", 3),
        )

        with pytest.raises(BadModelFile, match=r"m\.gguf: num_kv_heads=3 .* must divide num_heads"):
            load_config(source(path))

    def test_count_per_layer_is_read_if_all_layers_agree(self, tmp_path: Path) -> None:
        def config(counts: list[int]) -> ModelConfig:
            path = write_gguf(
                tmp_path / "m.gguf",
                {},
                skip=frozenset({"attention.head_count_kv"}),
                extra=lambda writer: writer.add_array("llama.attention.head_count_kv", counts),
            )
            return load_config(source(path))

        assert config([2, 2]).num_kv_heads == 2
        with pytest.raises(UnsupportedModel, match="differs between layers"):
            config([2, 1])


class TestDamage:
    """Files that are not what they should be say so before anything is computed."""

    def test_not_a_gguf_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        for content in (b"", b"GG", b"PK\x03\x04 a zip file"):
            path.write_bytes(content)
            with pytest.raises(BadModelFile, match="does not begin with 'GGUF'"):
                GgufFile(path)

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(BadModelFile, match=r"none\.gguf: cannot be read"):
            GgufFile(tmp_path / "none.gguf")

    @pytest.mark.parametrize("kept", [5, 20, 24, 60, 200, 700, 1000])
    def test_cut_inside_the_header(self, llama: Path, kept: int) -> None:
        llama.write_bytes(llama.read_bytes()[:kept])

        with pytest.raises(BadModelFile, match=rf"cut short: it ends after {kept} bytes"):
            GgufFile(llama)

    def test_cut_inside_the_tensors(self, llama: Path) -> None:
        content = llama.read_bytes()
        llama.write_bytes(content[: len(content) - 500])

        with pytest.raises(BadModelFile, match=r"cut short: tensor '.*' ends at byte \d+"):
            GgufFile(llama)

    def test_version_one_and_big_endian(self, llama: Path) -> None:
        content = llama.read_bytes()
        for version in (struct.pack("<I", 1), struct.pack(">I", 3)):
            llama.write_bytes(content[:4] + version + content[8:])
            with pytest.raises(UnsupportedModel, match="GGUF version"):
                GgufFile(llama)

    def test_unknown_value_type(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99))

        with pytest.raises(BadModelFile, match=r"damaged header near byte \d+ \(value type 99\)"):
            GgufFile(path)

    def test_counts_beyond_the_file_end_soon(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        array = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 1) + array)

        with pytest.raises(BadModelFile, match="cut short"):
            GgufFile(path)

    def test_unknown_number_format(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        record = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 32, 999, 0)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + record)

        with pytest.raises(UnsupportedModel, match="number format 999"):
            GgufFile(path)

    def test_row_that_is_no_whole_number_of_blocks(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        record = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 33, int(Kind.Q4_0), 0)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + record)

        with pytest.raises(BadModelFile, match="not in blocks of 32"):
            GgufFile(path)

    def test_number_format_without_a_reader(self, tmp_path: Path) -> None:
        def extra(writer: GGUFWriter) -> None:
            writer.add_tensor("t", np.zeros(4, np.int32))

        file = GgufFile(write_gguf(tmp_path / "m.gguf", {}, extra=extra))

        with pytest.raises(UnsupportedModel, match="stored as I32"):
            file.read(file.tensors["t"])

    def test_any_damage_is_answered_with_a_typed_error(self, llama: Path) -> None:
        whole = llama.read_bytes()
        rng = np.random.default_rng(0)
        answers = {"read": 0, "refused": 0}
        for _ in range(400):
            content = bytearray(whole)
            for position in rng.integers(0, 3000, 3):
                content[position] = rng.choice([0, 1, 128, 255])
            llama.write_bytes(content)
            try:
                load_weights(source(llama))
                answers["read"] += 1
            except (LoadingError, UnsupportedModel):
                answers["refused"] += 1

        assert answers["read"] + answers["refused"] == 400
        assert answers["refused"] > 100

    def test_missing_tensor(self, tmp_path: Path) -> None:
        tensors = random_tensors()
        del tensors["model.layers.1.mlp.up_proj.weight"]

        with pytest.raises(MissingTensor, match=r"m\.gguf: tensor 'model\.layers\.1\.mlp\.up_proj\.weight'") as caught:
            load_weights(source(write_gguf(tmp_path / "m.gguf", tensors)))
        assert caught.value.tensor == "model.layers.1.mlp.up_proj.weight"

    def test_wrong_shape(self, tmp_path: Path) -> None:
        tensors = random_tensors()
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]

        with pytest.raises(
            UnexpectedTensor, match=rf"'lm_head\.weight' has shape \({VOCAB - 1}, 64\), the config says"
        ):
            load_weights(source(write_gguf(tmp_path / "m.gguf", tensors)))

    def test_tensor_without_a_place(self, tmp_path: Path) -> None:
        path = write_gguf(
            tmp_path / "m.gguf",
            random_tensors(),
            extra=lambda writer: add_tensor(writer, "blk.0.attn_sinks.weight", np.zeros(4, np.float32)),
        )

        with pytest.raises(UnexpectedTensor, match=r"'blk\.0\.attn_sinks\.weight' has no place"):
            load_weights(source(path))
