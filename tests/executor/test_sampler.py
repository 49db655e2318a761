"""Each sampling parameter against a slow reference written with loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from headway.config import ConfigError, SamplingParams
from headway.core.logprobs import TokenLogprobs
from headway.core.plan import AdmittedRow
from headway.executor.parameters import SlotParameters
from headway.executor.sampler import SampledRows, Sampler

VOCAB = 30
EOS = 2
SLOTS = 6


def make_row(slot: int, tokens: list[int], num_prompt: int, handle: int = 5, **sampling: Any) -> AdmittedRow:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": None, **sampling})
    ending = params.stop_token_ids + (() if params.ignore_eos else (EOS,))
    return AdmittedRow(slot, handle, "r", np.array(tokens, np.int32), num_prompt, 0, (), params, False, ending)


def make_logits(n: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def sample(rows: list[AdmittedRow], logits: torch.Tensor) -> SampledRows:
    """Sample the token after the last one of each row; the logits are changed."""
    parameters = SlotParameters(SLOTS, VOCAB, seed=0)
    table = torch.zeros(SLOTS, 40, dtype=torch.int32)
    for row in rows:
        parameters.admit(row)
        table[row.slot, : len(row.tokens)] = torch.from_numpy(row.tokens)
    slots = np.array([row.slot for row in rows], np.int32)
    return Sampler(parameters).sample(logits, slots, np.array([len(row.tokens) for row in rows]), table)


def edited(logits: np.ndarray, row: AdmittedRow) -> np.ndarray:
    """What the logits must be after penalties, bias and forbidden tokens."""
    params, out = row.sampling, logits.astype(np.float64).copy()
    output = row.tokens[row.num_prompt_tokens :].tolist()
    for token in set(row.tokens.tolist()):
        out[token] *= 1 / params.repetition_penalty if out[token] > 0 else params.repetition_penalty
    for token in set(output):
        out[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, value in params.logit_bias.items():
        out[token] += value
    for *before, last in params.bad_token_ids:
        if output[len(output) - len(before) :] == before:
            out[last] = -np.inf
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids + (() if params.ignore_eos else (EOS,)):
            out[token] = -np.inf
    return out


TOKENS = [3, 4, 4, 5, 7, 3, 7, 7, 9, 29]
EDITS: list[Mapping[str, Any]] = [
    {},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.9},
    {"logit_bias": {7: 3.0, 0: -100.0}},
    {"min_tokens": 7, "stop_token_ids": (4, 6)},
    {"min_tokens": 6, "stop_token_ids": (4, 6)},
    {"min_tokens": 7, "stop_token_ids": (4,), "ignore_eos": True},
    {"min_tokens": 9, "logit_bias": {2: 50.0}, "frequency_penalty": 1.0},
    {
        "bad_token_ids": (
            (13,),
            (29, 21),
            (9, 29, 13),
            (29, 0),
            (29, 28, 1),
            (7, 3, 7, 7, 9, 29, 4),
            (4, 7, 3, 7, 7, 9, 29, 5),
        )
    },
    {"bad_token_ids": ((9, 29, 13), (21,)), "logit_bias": {13: 50.0, 21: 50.0}, "min_tokens": 8},
]


@pytest.mark.parametrize("params", EDITS, ids=str)
def test_logits_are_edited_as_in_the_reference(params: Mapping[str, Any]) -> None:
    row = make_row(3, TOKENS, 4, **params)
    logits = make_logits()
    expected = edited(logits[0].numpy(), row)
    result = sample([row], logits)
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=1e-5, atol=1e-5)
    assert result.tokens.tolist() == [int(expected.argmax())]


def test_edits_of_one_row_leave_the_others_alone() -> None:
    rows = [make_row(slot, TOKENS[: 4 + slot], 4, **EDITS[2 * slot]) for slot in range(SLOTS)]
    logits = make_logits(SLOTS)
    expected = [edited(logits[row.slot].numpy(), row) for row in rows]
    sample(rows, logits)
    np.testing.assert_allclose(logits.numpy(), np.stack(expected), rtol=1e-5, atol=1e-5)


def test_a_slot_forgets_the_request_before() -> None:
    parameters = SlotParameters(SLOTS, VOCAB, seed=0)
    asks = {
        "logit_bias": {1: 5.0},
        "bad_token_ids": ((3,),),
        "min_tokens": 5,
        "frequency_penalty": 1.0,
        "logprobs": 2,
        "prompt_logprobs": 1,
    }
    parameters.admit(make_row(0, TOKENS, 2, temperature=1.0, top_k=3, top_p=0.5, min_p=0.5, seed=3, **asks))
    parameters.admit(make_row(0, TOKENS, 2))
    fresh = SlotParameters(SLOTS, VOCAB, seed=0)
    fresh.admit(make_row(0, TOKENS, 2))
    columns = [name for name, value in vars(fresh).items() if isinstance(value, np.ndarray)]
    assert {name: getattr(parameters, name)[0] for name in columns} == {
        name: getattr(fresh, name)[0] for name in columns
    }
    logits = make_logits()
    before = logits.clone()
    assert (
        Sampler(parameters).sample(logits, np.zeros(1, np.int32), np.array([10]), torch.zeros(6, 40)).logprobs is None
    )
    assert torch.equal(logits, before)


def test_greedy_and_random_rows_share_a_batch() -> None:
    rows = [make_row(0, TOKENS, 4), make_row(1, TOKENS, 4, temperature=0.8, seed=1), make_row(2, TOKENS, 4, top_k=1)]
    rows[2] = dataclasses.replace(rows[2], sampling=SamplingParams(temperature=5.0, top_k=1))
    logits = make_logits(3)
    together = sample(rows, logits.clone()).tokens.tolist()
    assert together[0] == logits[0].argmax() and together[2] == logits[2].argmax()
    assert together[1] == sample([rows[1]], logits[1:2].clone()).tokens.item()


def draws(num: int = 30, **sampling: Any) -> list[int]:
    """Tokens at ``num`` positions from the same flat logits."""
    handle = sampling.pop("handle", 5)
    rows = [make_row(0, TOKENS[:1] * length, 1, handle, temperature=1.0, **sampling) for length in range(1, num + 1)]
    return [sample([row], torch.zeros(1, VOCAB)).tokens.item() for row in rows]


def test_seeds_decide_and_unseeded_requests_are_unlike() -> None:
    assert draws(seed=42) == draws(seed=42, handle=77)
    sequences = [draws(seed=42), draws(seed=43), draws(seed=-1), draws(seed=2**70), draws(handle=42), draws(handle=43)]
    assert len({tuple(sequence) for sequence in sequences}) == len(sequences)
    assert draws(handle=42) == draws(handle=42)
    assert all(len(set(sequence)) > 8 for sequence in sequences)


def test_rows_without_a_finite_maximum_are_reported_and_harm_nobody() -> None:
    logits = make_logits(5)
    logits[1, 4] = torch.nan
    logits[2, 4] = torch.inf
    logits[3] = -torch.inf
    rows = [make_row(slot, TOKENS, 4, temperature=float(slot % 2), seed=slot) for slot in range(5)]
    result = sample(rows, logits.clone())
    assert result.bad.tolist() == [False, True, True, True, False]
    assert result.tokens[1:4].tolist() == [0, 0, 0]
    assert result.tokens[4] == sample([rows[4]], logits[4:].clone()).tokens.item()


def test_a_row_that_may_not_say_anything_is_bad() -> None:
    row = make_row(0, TOKENS, 10, min_tokens=1, stop_token_ids=tuple(range(VOCAB)))
    assert sample([row], make_logits()).bad.tolist() == [True]


def test_logprobs_are_those_of_the_unedited_logits() -> None:
    rows = [
        make_row(0, TOKENS, 4, logprobs=3, logit_bias={8: 90.0}),
        make_row(1, TOKENS, 4),
        make_row(2, TOKENS, 4, logprobs=0, temperature=2.0, seed=1),
    ]
    logits = make_logits(3)
    log_softmax = logits.double().log_softmax(-1)
    result = sample(rows, logits.clone())
    assert result.logprobs is not None and result.logprob_rows.tolist() == [0, 2]
    entries = result.logprobs.to_host()
    for entry, row in zip(entries, (0, 2), strict=True):
        token = result.tokens[row].item()
        order = log_softmax[row].argsort(descending=True).tolist()
        assert entry.token == token and entry.rank == order.index(token) + 1
        assert entry.logprob == pytest.approx(log_softmax[row, token].item(), abs=1e-5)
        assert [top for top, _ in entry.top] == order[: (3, 0, 0)[row]]
        assert [value for _, value in entry.top] == pytest.approx([log_softmax[row, t].item() for t, _ in entry.top])
    assert entries[0].token == 8 and isinstance(entries[0], TokenLogprobs)


def test_more_alternatives_than_tokens_give_all() -> None:
    result = sample([make_row(0, TOKENS, 4, logprobs=100)], make_logits())
    assert result.logprobs is not None
    assert len(result.logprobs.to_host()[0].top) == VOCAB


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_bias_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        SlotParameters(SLOTS, VOCAB, seed=0).admit(make_row(0, TOKENS, 4, logit_bias={token: 1.0}))


def test_stop_ids_outside_the_vocabulary_do_not_matter() -> None:
    logits = make_logits()
    expected = logits[0].argmax().item()
    row = make_row(0, TOKENS, 10, min_tokens=3, stop_token_ids=(VOCAB + 5,), ignore_eos=True)
    assert sample([row], logits).tokens.item() == expected


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    everything = make_row(0, TOKENS, 4, temperature=1.0, seed=1)
    wide = make_row(0, TOKENS, 4, temperature=1.0, seed=1, top_k=10**9)
    assert sample([wide], make_logits()).tokens.item() == sample([everything], make_logits()).tokens.item()
