"""The draw against a slow reference that sorts, and against the distribution it claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.executor.draw import DrawSettings, draw
from headway.executor.randomness import request_key, uniform


def make_settings(n: int, **columns: float) -> DrawSettings:
    """The same parameters for ``n`` rows of one seed at positions 0, 1, 2, ..."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **columns}
    return DrawSettings(
        temperature=np.full(n, values["temperature"]),
        top_k=np.full(n, values["top_k"], np.int64),
        top_p=np.full(n, values["top_p"]),
        min_p=np.full(n, values["min_p"]),
        keys=np.full(n, request_key(11, 0, 0), np.uint64),
        positions=np.arange(n),
    )


def reference(logits: np.ndarray, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Probabilities after the rules of the module's docstring, by sorting."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    if top_k:
        probs[probs < np.sort(probs)[::-1][min(top_k, len(probs)) - 1]] = 0.0
    probs /= probs.sum()
    if top_p < 1.0:
        likeliest = np.sort(probs)[::-1]
        kept = np.searchsorted(np.cumsum(likeliest), top_p)
        probs[probs < likeliest[min(kept, len(probs) - 1)]] = 0.0
    probs[probs < min_p * probs.max()] = 0.0
    return probs / probs.sum()


CASES = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.5},
    {"top_p": 0.95, "temperature": 3.0},
    {"top_p": 0.999, "min_p": 0.01},
    {"top_k": 700},
    {"top_k": 700, "top_p": 0.9, "temperature": 4.0},
    {"min_p": 0.0001, "temperature": 2.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("vocab_size", [40, 1500])
def test_frequencies_follow_the_distribution(vocab_size: int, case: dict[str, float]) -> None:
    logits = np.random.default_rng(vocab_size).normal(0, 2, vocab_size).astype(np.float32)
    n = 3000
    drawn = draw(torch.from_numpy(logits).expand(n, -1).contiguous(), make_settings(n, **case)).numpy()
    probs = reference(logits, **case)
    assert probs[drawn].min() > 0.0, "a token that the rules drop was drawn"
    observed = np.bincount(drawn, minlength=vocab_size)
    # Pearson's chi-square over bins of at least 10 expected draws; the rest is one bin.
    rare = probs * n < 10
    expected = np.append(probs[~rare], probs[rare].sum()) * n
    counts = np.append(observed[~rare], observed[rare].sum())
    expected, counts = expected[expected > 0], counts[expected > 0]
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    # Mean and standard deviation of chi-square are f and sqrt(2 f); 5 deviations are far beyond chance.
    assert chi_square < freedom + 5 * np.sqrt(2 * max(freedom, 1)), f"{chi_square} with {freedom} degrees of freedom"


@pytest.mark.parametrize("case", [*CASES, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_same_token_as_inverting_the_reference_distribution(case: dict[str, float]) -> None:
    """Where no row has to draw twice, the token is the one that the first uniform number picks."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (60, 300)).astype(np.float32)
    settings = make_settings(60, **case)
    drawn = draw(torch.from_numpy(logits.copy()), settings).numpy()
    numbers = uniform(settings.keys, settings.positions)
    for row, number in enumerate(numbers):
        cumulative = np.cumsum(reference(logits[row], **case))
        if case.get("top_k", 0) < 512:
            assert drawn[row] == np.searchsorted(cumulative, number * cumulative[-1], side="right")


def test_a_row_draws_the_same_in_any_batch() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 1, (24, 2000)).astype(np.float32))
    n = len(logits)
    mixed = DrawSettings(
        temperature=rng.choice([0.5, 1.0, 3.0], n),
        top_k=rng.choice([0, 7, 90, 900], n),
        top_p=rng.choice([0.5, 0.95, 1.0], n),
        min_p=rng.choice([0.0, 0.2], n),
        keys=rng.integers(0, 2**63, n).astype(np.uint64),
        positions=rng.integers(0, 5000, n),
    )
    together = draw(logits.clone(), mixed)
    alone = torch.cat([draw(logits[row : row + 1].clone(), mixed.take(np.array([row]))) for row in range(n)])
    order = rng.permutation(n)
    assert together.tolist() == alone.tolist()
    assert draw(logits[order], mixed.take(order)).tolist() == together[order].tolist()
    assert mixed.truncates.any() and not mixed.truncates.all()


def test_tokens_as_likely_as_the_last_one_kept_stay() -> None:
    logits = torch.zeros(400, 1000)
    logits[:, :600] = 5.0
    for case in ({"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.5}, {"top_k": 520, "top_p": 0.4}):
        drawn = draw(logits.clone(), make_settings(400, **case))
        assert drawn.max() < 600 and len(drawn.unique()) > 200, case


def test_rows_without_a_finite_maximum_do_no_harm() -> None:
    bad = torch.stack([torch.full((1500,), torch.nan), torch.full((1500,), -torch.inf), torch.full((1500,), torch.inf)])
    bad[2, 1] = 0.0
    good = torch.full((1, 1500), -9.0)
    good[0, 77] = 9.0
    for case in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 800, "top_p": 0.5}):
        assert draw(torch.cat([bad, good]), make_settings(4, **case))[3] == 77


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((300, 1000), -torch.inf)
    logits[:, 123] = logits[:, 998] = 1.0
    for case in ({}, {"top_k": 50}, {"top_p": 0.99}, {"top_p": 0.9999, "top_k": 600}):
        assert set(draw(logits.clone(), make_settings(300, **case)).tolist()) == {123, 998}
