"""The real SmolLM2 135M: our tensors and ids against those that transformers reads out of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.models.loading import ModelSource, Tokenizer, load_tokenizer, load_weights, resolve_model
from headway.models.loading.gguf_file import GgufFile
from headway.models.loading.gguf_model import gguf_config
from tests.support.real_model import smollm2_path

pytestmark = pytest.mark.real_model

END_OF_TURN = 2

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  Leading, trailing and\n\n\n\tmixed \r\n white   space  \n",
    "def walk(node):\n    for child in node:\n        yield from walk(child)\n",
    "π ≈ 3.14159265, 2¹⁰ = 1024, ½ + ¼; don't, we'll, I'M",
    "日本語の文章です。中文句子。한국어 문장입니다. العربية עברית",
    "🌍 🧑‍🚀 👩‍👩‍👧 🇨🇭 — naïve café",
    "<|im_start|>user\nhello<|im_end|>\n",
)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    smollm2_path()
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(source: ModelSource) -> Tokenizer:
    return load_tokenizer(source)


@pytest.fixture(scope="module")
def reference_tokenizer(source: ModelSource) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(source.path.parent), gguf_file=source.path.name)


def test_every_tensor_equals_that_of_transformers(source: ModelSource) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        skeleton = LlamaForCausalLM(LlamaConfig(**gguf_config(GgufFile(source.path))))
    reference = load_gguf_checkpoint(str(source.path), return_tensors=True, model_to_load=skeleton)["tensors"]

    config, weights = load_weights(source)

    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.vocab_size) == (30, 9, 3, 49152)
    assert (config.rope_theta, config.tie_word_embeddings, config.eos_token_ids) == (100000.0, True, (END_OF_TURN,))
    assert set(weights) == set(reference)
    for name in weights:
        assert torch.equal(weights[name], reference[name]), name


def test_it_knows_its_own_language(source: ModelSource, tokenizer: Tokenizer) -> None:
    """Wrong row order or norms would leave tensors plausible and predictions useless."""
    from transformers import LlamaConfig, LlamaForCausalLM

    _, weights = load_weights(source)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**gguf_config(GgufFile(source.path))))
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its table is no weight
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = tokenizer.encode("The capital of France is Paris.")

    with torch.inference_mode():
        scores = model(torch.tensor([prompt + answer])).logits[0]

    assert scores.argmax(-1).tolist()[len(prompt) - 1 :] == [*answer, END_OF_TURN]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.id_to_bytes, ids)).decode() == text


def test_ids_equal_those_of_transformers_in_text_without_digits(tokenizer: Tokenizer, reference_tokenizer: Any) -> None:
    for text in TEXTS:
        if not any(char.isnumeric() for char in text):
            assert tokenizer.encode(text) == reference_tokenizer.encode(text), text


def test_digits_are_cut_off_before_anything_else(tokenizer: Tokenizer, reference_tokenizer: Any) -> None:
    """SmolLM2 was trained with single digits; transformers has no rule for it and splits as GPT-2 does."""
    from tokenizers import pre_tokenizers

    texts = [*TEXTS, Path(__file__).read_text(encoding="utf-8"), "\n    12345  x   67\n"]
    assert tokenizer.encode(texts[-1]) != reference_tokenizer.encode(texts[-1])

    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = reference_tokenizer.backend_tokenizer
    before = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    expected = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    backend.pre_tokenizer = before

    assert [tokenizer.encode(text) for text in texts] == expected


def test_chat_template_and_end_of_turn(tokenizer: Tokenizer, reference_tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 👋"}]

    text = tokenizer.apply_chat_template(messages)

    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi 👋<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text == reference_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.encode_chat(messages) == reference_tokenizer.encode(text)
    assert tokenizer.eos_token_ids == (END_OF_TURN,)
    assert tokenizer.id_to_bytes(END_OF_TURN) == b"<|im_end|>"
    assert END_OF_TURN in tokenizer.special_token_ids
    assert (tokenizer.bos_token_id, tokenizer.vocab_size, tokenizer.name) == (1, 49152, "smollm2-135m")
