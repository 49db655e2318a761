"""A Llama folder with random weights and a byte-level tokenizer, as transformers saves one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS = 256, 257
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tiny_model(folder: Path, *, seed: int = 0, **shape: int) -> Path:
    """Write the folder: 2 layers, 4 heads, 2 KV heads, 258 tokens, context 256, but for ``shape``."""
    usual = {
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
    }
    config = LlamaConfig(bos_token_id=BOS, eos_token_id=EOS, initializer_range=0.2, **(usual | shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    return folder


def _byte_level() -> Tokenizer:
    """Every byte is a token; texts begin with ``<s>``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({character: place for place, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", BOS)])
    return tokenizer
