"""SmolLM2-135M through the whole engine, held against Hugging Face transformers, token for token, in float32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from headway import LLM, SamplingParams
from headway.engine.outputs import RequestOutput
from headway.models.loading import load_weights, resolve_model

pytestmark = pytest.mark.real_model

GUIDE = "You are the guide of a small museum by the sea. Answer in one short sentence, and never invent a date.\n"
PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "The opposite of hot is",
    "A triangle has three",
    "In spring, the trees begin to",
    "The quick brown fox",
    "My grandmother taught me how to bake",
    "To be, or not to be:",
    "def add(a, b):\n    return",
    "for i in range(10):\n    print(",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "Once upon a time, in a village far away,",
    "The three primary colours are red,",
    "1, 2, 3, 4, 5,",
    "Monday, Tuesday, Wednesday,",
    "Die Hauptstadt von Deutschland ist",
    "Le chat est assis sur",
    "Question: How many legs does a spider have?\nAnswer:",
    "Question: Who wrote Romeo and Juliet?\nAnswer:",
    "Ingredients: two eggs, some flour, a little milk.\nMethod:",
    "Breaking news: scientists have found",
    "The train leaves at half past seven and arrives",
    "She opened the old wooden box and found",
    GUIDE + "Visitor: What is the oldest boat here?\nGuide:",
    GUIDE + "Visitor: Where can my children sit and draw?\nGuide:",
    GUIDE + "Visitor: Why is the lighthouse painted white?\nGuide:",
    GUIDE + "Visitor: How do I get to the island?\nGuide:",
    GUIDE + "Visitor: May I bring my dog?\nGuide:",
    GUIDE + "Visitor: What did sailors eat?\nGuide:",
    GUIDE + "Visitor: Is there a café? 🐟\nGuide:",
    GUIDE + "Visitor: What is a knot?\nGuide:",
]
NUM_OUTPUTS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)

VARIANTS: dict[str, dict[str, object]] = {
    "batched": {"num_blocks": 512},
    "batched without prefix cache": {"num_blocks": 512, "enable_prefix_caching": False},
    "alone": {"num_blocks": 64, "max_num_seqs": 1},
    "chunks of 1": {"num_blocks": 64, "max_num_seqs": 1, "max_num_batched_tokens": 1},
    "chunks of 7": {"num_blocks": 512, "max_num_seqs": 4, "max_num_batched_tokens": 7},
    "chunks of 64": {"num_blocks": 512, "max_num_seqs": 16, "max_num_batched_tokens": 64},
    "preempted": {"num_blocks": 14, "block_size": 8, "max_num_seqs": 6},
    "preempted without prefix cache": {
        "num_blocks": 14,
        "block_size": 8,
        "max_num_seqs": 6,
        "enable_prefix_caching": False,
    },
    "pure torch kernels": {"num_blocks": 512, "kernels": "torch"},
}


def run(**options: object) -> list[RequestOutput]:
    """All prompts through an engine made for these options."""
    llm = LLM(model="smollm2-135m", weight_dtype="float32", max_model_len=112, **options)  # type: ignore[arg-type]
    try:
        return llm.generate(PROMPTS, GREEDY)
    finally:
        llm.close()


def output_ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    """The tokens of each request."""
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def batched() -> list[RequestOutput]:
    """Outputs of the plainest run."""
    return run(**VARIANTS["batched"])


@pytest.fixture(scope="module")
def reference_model() -> torch.nn.Module:
    """The same weights in transformers' own model."""
    config, weights = load_weights(resolve_model("smollm2-135m"), dtype=torch.float32)
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
        ),
        dtype=torch.float32,
    )
    missing, unexpected = model.load_state_dict({name: weights[name] for name in weights}, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"} and config.tie_word_embeddings
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(
    batched: list[RequestOutput], reference_model: torch.nn.Module
) -> None:
    """One forward pass of transformers over prompt and output: at every place its likeliest token is ours.

    By induction over the places this is what its own greedy generation gives.
    """
    assert len(PROMPTS) >= 32
    for output in batched:
        prompt, ids = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
        assert len(ids) == NUM_OUTPUTS
        logits = reference_model(torch.tensor([prompt + ids])).logits[0]

        expected = logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()

        assert expected == ids, output.prompt


@torch.inference_mode()
def test_transformers_generates_the_same_by_itself(
    batched: list[RequestOutput], reference_model: torch.nn.Module
) -> None:
    """A few prompts through transformers' own generation loop, so that the shortcut above is checked as well."""
    for output in batched[::8]:
        prompt = torch.tensor([list(output.prompt_token_ids)])
        generated = reference_model.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=NUM_OUTPUTS,
            min_new_tokens=NUM_OUTPUTS,
        )

        assert generated[0, prompt.shape[1] :].tolist() == list(output.outputs[0].token_ids)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "batched"])
def test_tokens_do_not_depend_on_how_they_are_scheduled(batched: list[RequestOutput], variant: str) -> None:
    outputs = run(**VARIANTS[variant])

    assert output_ids(outputs) == output_ids(batched)
    num_preemptions = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
    assert (num_preemptions > 0) == variant.startswith("preempted")
    if "chunks" in variant:
        assert max(output.metrics.num_chunks for output in outputs if output.metrics) > 1
    cached = sum(output.metrics.num_cached_tokens for output in outputs if output.metrics)
    assert (cached > 0) == ("without" not in variant)
