"""How long a context may get: with scaled positions, and with a sliding window. Tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headway.build import LLM
from headway.config import ConfigError, SamplingParams
from headway.models.tiny import make_tiny

SMALL = {"num_blocks": 32, "max_num_seqs": 2, "weight_dtype": "float32"}
YARN = {"rope_type": "yarn", "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "yarn": ("qwen2", {"max_position_embeddings": 64, "rope_scaling": YARN}, 256, "with its scaling of positions"),
    "yarn, length raised": (
        "qwen2",
        {"max_position_embeddings": 256, "rope_scaling": {**YARN, "original_max_position_embeddings": 64}},
        256,
        "the longest context of this model",
    ),
    "yarn, length between": (
        "qwen3",
        {"max_position_embeddings": 80, "rope_scaling": {**YARN, "original_max_position_embeddings": 64}},
        256,
        "with its scaling of positions",
    ),
    "linear": (
        "llama",
        {"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 4.0}},
        256,
        "with its scaling of positions",
    ),
    "window of all layers": ("mistral", {"sliding_window": 64}, 64, "sliding window"),
    "window of one layer": (
        "qwen2",
        {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1},
        64,
        "sliding window",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_longest_context_is_reached_and_not_passed(case: str, tmp_path: Path) -> None:
    architecture, overrides, longest, why = CASES[case]
    folder = make_tiny(tmp_path, architecture, overrides=overrides)
    llm = LLM(str(folder), **SMALL)
    prompt = [token % 300 + 3 for token in range(longest - 12)]
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None

    (output,) = llm.generate([prompt], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True))

    ids = torch.tensor([prompt])
    with torch.inference_mode():
        expected = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert list(output.outputs[0].token_ids) == expected[0, len(prompt) :].tolist()
    assert llm.engine.scheduler.config.max_model_len == longest
    assert any(f"max_model_len: {longest} tokens" in limit and why in limit for limit in llm.engine.limits)
    assert LLM(str(folder), max_model_len=longest, **SMALL).engine.scheduler.config.max_model_len == longest
    with pytest.raises(ConfigError, match=f"must be at most {longest}, .*{why}"):
        LLM(str(folder), max_model_len=longest + 1, **SMALL)
