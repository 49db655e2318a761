"""Sampling parameters at the edges of 32-bit floats: whatever the combination, a token that the rules allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.config import ConfigError, SamplingParams
from headway.config.sampling import LEAST_TEMPERATURE
from headway.core.plan import AdmittedRow
from headway.executor.masks import RowMasks
from headway.executor.parameters import SlotParameters
from headway.executor.sampler import Sampler

EOS = 2
NUM_PROMPT = 3
TOKENS = [3, 4, 4, 5, 7, 3, 7, 7, 9, 29]
TINY = [5e-324, 1e-300, 1e-45, 1.4e-45, 2.9e-39, 3e-39, 1.1e-38, LEAST_TEMPERATURE, 1.2e-38, 1e-30, 1e-10]

temperatures = st.sampled_from([0.0, -0.0, *TINY, 0.5, 1.0, 100.0])
probabilities = st.sampled_from([*TINY, 0.3, 0.9, math.nextafter(1.0, 0.0), 1.0 - 2**-24, 1.0])
biases = st.sampled_from([0.0, 1e-45, -1e-45, 100.0, -100.0, 1e30, -1e30, 1e38 / 1e8])
parameters = st.fixed_dictionaries(
    {
        "temperature": temperatures,
        "top_k": st.sampled_from([0, 1, 2, 25, 600, 2**40, 2**70]),
        "top_p": probabilities,
        "min_p": st.sampled_from([0.0, *TINY, 0.2, math.nextafter(1.0, 0.0), 1.0]),
        "repetition_penalty": st.sampled_from([0.01, 1.0 - 2**-53, 1.0, 1.0 + 1e-12, 1.3, 100.0]),
        "presence_penalty": st.sampled_from([0.0, 1e-45, -1e-300, 2.0, -2.0]),
        "frequency_penalty": st.sampled_from([0.0, 1e-45, -1e-300, 2.0, -2.0]),
        "logit_bias": st.dictionaries(st.integers(0, 39), biases, max_size=6),
        "seed": st.sampled_from([0, -1, 1, 2**64, -(2**70)]),
        "min_tokens": st.sampled_from([0, 7, 8, 2**31]),
        "stop_token_ids": st.sampled_from([(), (4, 7)]),
    }
)
cases = st.fixed_dictionaries(
    {
        "vocab_size": st.sampled_from([40, 700]),
        "scale": st.sampled_from([0.0, 1e-40, 1e-5, 1.0, 30.0, 1e4, 1e30]),
        "seed": st.integers(0, 10**6),
        "allowed": st.none() | st.sets(st.integers(0, 39), min_size=1),
    }
)


def make_logits(vocab_size: int, scale: float, seed: int) -> torch.Tensor:
    return (torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(seed)).double() * scale).float()


def bits_of(allowed: set[int], vocab_size: int) -> np.ndarray:
    words = np.zeros((1, -(-vocab_size // 32)), np.uint32)
    for token in allowed:
        words[0, token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


def sample(logits: torch.Tensor, params: SamplingParams, allowed: set[int] | None = None) -> tuple[int, bool]:
    vocab_size = logits.shape[1]
    columns = SlotParameters(1, vocab_size, seed=0)
    tokens, ending = np.array(TOKENS, np.int32), (EOS, *params.stop_token_ids)
    columns.admit(AdmittedRow(0, 5, "r", tokens, NUM_PROMPT, 0, (), params, False, ending))
    masks = None if allowed is None else RowMasks(np.zeros(1, np.int64), bits_of(allowed, vocab_size))
    table = torch.tensor([TOKENS], dtype=torch.int32)
    result = Sampler(columns).sample(logits, np.zeros(1, np.int32), np.array([len(TOKENS)]), table, masks)
    return int(result.tokens[0]), bool(result.bad[0])


def edited(logits: np.ndarray, params: SamplingParams, allowed: set[int] | None) -> np.ndarray:
    """float64[vocabulary]: what the rules make of the logits before the draw."""
    out, output = logits.astype(np.float64), TOKENS[NUM_PROMPT:]
    if allowed is not None:
        out[[token for token in range(len(out)) if token not in allowed]] = -np.inf
    for token in set(TOKENS):
        out[token] *= 1 / params.repetition_penalty if out[token] > 0 else params.repetition_penalty
    for token in set(output):
        out[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, value in params.logit_bias.items():
        out[token] += value
    if len(output) < params.min_tokens:
        out[[EOS, *params.stop_token_ids]] = -np.inf
    return out


def is_kept(logits: np.ndarray, token: int, params: SamplingParams) -> bool:
    """Whether the rules keep a token; at the very edge, where 32 bits cannot tell, either is right."""
    slack = 1e-5 * np.abs(logits[np.isfinite(logits)]).max() + 1e-37
    # What is added may cancel out, but for the rounding of its sum.
    slack += 1e-6 * (abs(params.presence_penalty) + abs(params.frequency_penalty) * len(TOKENS))
    slack += 1e-6 * max(map(abs, params.logit_bias.values()), default=0.0)
    gaps = logits.max() - logits
    if not gaps[token] < np.inf:
        return False
    if params.temperature < 1e-37:
        return bool(gaps[token] <= slack)
    with np.errstate(over="ignore"):
        weights = np.exp(-gaps / params.temperature)
        most = np.exp(-max(0.0, gaps[token] - slack) / params.temperature)
        likelier = gaps < gaps[token] - slack
    small = 1e-5
    return bool(
        most > 0.0
        and (params.top_k == 0 or likelier.sum() < params.top_k)
        and (params.top_p == 1.0 or weights[likelier].sum() <= (params.top_p + small) * weights.sum())
        and most >= params.min_p * (1 - small)
    )


@settings(max_examples=400, deadline=None)
@given(case=cases, given_parameters=parameters)
@example(case={"vocab_size": 700, "scale": 1.0, "seed": 1, "allowed": None}, given_parameters={"temperature": 2.9e-39})
def test_a_token_that_the_rules_keep(case: dict[str, Any], given_parameters: dict[str, Any]) -> None:
    allowed = case.pop("allowed")
    params = SamplingParams(max_tokens=None, **given_parameters)
    logits = make_logits(**case)
    expected = edited(logits[0].numpy(), params, allowed)
    token, bad = sample(logits, params, allowed)
    if not np.isfinite(expected).any():
        assert bad
        return
    assert not bad and not logits.isnan().any()
    assert is_kept(expected, token, params), (token, expected[token], expected.max())


@pytest.mark.parametrize("temperature", [value for value in TINY if value < 1e-30])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 1e-45}], ids=str)
def test_the_smallest_temperatures_are_greedy(temperature: float, more: dict[str, float]) -> None:
    for seed in range(5):
        logits = make_logits(700, 3.0, seed)
        greedy = int(logits[0].argmax())
        assert sample(logits, SamplingParams(temperature=temperature, seed=seed, **more)) == (greedy, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e39, "1", None, True], ids=str)
def test_a_bias_that_is_no_number_to_add_is_refused(bias: Any) -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        SamplingParams(logit_bias={1: bias})


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, -1e39], ids=str)
def test_numbers_out_of_all_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
