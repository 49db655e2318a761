"""Choosing one token per row from logits: temperature, top-k, top-p, min-p, then the draw. No vocabulary is sorted.

The rules, in this order. Tokens whose logits are equal are kept or dropped together:

1. temperature: logits are divided by it;
2. top-k keeps the ``k`` likeliest tokens (and those as likely as the last of them);
3. top-p keeps, of those, the fewest likeliest tokens that together have at least ``p`` of their probability;
4. min-p keeps, of those, the tokens at least ``min_p`` times as likely as the likeliest;
5. one uniform number per row picks a token from what is kept, by inverting the cumulative distribution in the order
   of token ids.

The rules only ever drop the unlikely end, so a row is first tried on its 64 and then 512 likeliest tokens (``topk``):
if the least of those falls below what the rules keep, the rest of the vocabulary cannot matter. Rows that keep more
draw from the whole vocabulary and *reject*: a token outside the nucleus is struck out together with all less likely
ones, and the row draws again. That gives the same distribution without ever finding the edge of the nucleus (pivot
rejection, as in FlashInfer's "Sorting-Free GPU Kernels for LLM Sampling", 2025); a first draw is accepted with at
least probability ``p``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.mixing import UInt64
from headway.core.plan import Bool, Int64
from headway.executor.randomness import uniform
from headway.executor.tensors import to_device

CANDIDATES = (64, 512)
_BLOCK = 256

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DrawSettings:
    """How each row draws; all arrays have one entry per row.

    Attributes:
        temperature: at least ``config.sampling.LEAST_TEMPERATURE``.
        top_k: 0 keeps all.
        top_p: in (0, 1]; 1 keeps all.
        min_p: in [0, 1]; 0 keeps all.
        keys, positions: what the row's random numbers are made from, see :mod:`headway.executor.randomness`.
    """

    temperature: Float64
    top_k: Int64
    top_p: Float64
    min_p: Float64
    keys: UInt64
    positions: Int64

    def take(self, rows: Int64 | Bool) -> DrawSettings:
        """The settings of some rows."""
        return DrawSettings(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    @property
    def truncates(self) -> Bool:
        """bool[n]: whether the row keeps less than the whole vocabulary."""
        return (self.top_k > 0) | (self.top_p < 1.0) | (self.min_p > 0.0)


def draw(logits: Tensor, settings: DrawSettings) -> Tensor:
    """Draw a token per row: float32[n, vocabulary] -> int64[n]. The logits are overwritten.

    A row's result depends on nothing but that row. That of a row without a finite maximum means nothing.
    """
    # Probabilities up to a factor, the likeliest token's being 1. In place: fresh memory costs more than arithmetic.
    scale = _to(1.0 / settings.temperature, logits).float()[:, None]
    weights = logits.sub_(logits.amax(-1, keepdim=True)).mul_(scale).exp_()
    tokens = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
    pending = settings.truncates
    for width in CANDIDATES:
        rows = np.flatnonzero(pending & (settings.top_k < width))
        if len(rows):
            chosen, settled = _draw_among(_take(weights, rows), settings.take(rows), min(width, weights.shape[1]))
            done = rows[settled]
            tokens[_to(done, weights)] = chosen[_to(settled, weights)]
            pending[done] = False
    rows = np.flatnonzero(pending | ~settings.truncates)
    if len(rows):
        tokens[_to(rows, weights)] = _draw_from_all(_take(weights, rows), settings.take(rows))
    return tokens


def _draw_among(weights: Tensor, settings: DrawSettings, width: int) -> tuple[Tensor, Bool]:
    """Draw among the ``width`` likeliest tokens; the second result tells for which rows that was enough."""
    top_k, top_p = _to(settings.top_k, weights)[:, None], _to(settings.top_p, weights)[:, None]
    values, ids = weights.topk(width, dim=-1)
    values = values.double()

    k_edge = torch.where(top_k > 0, values.gather(1, (top_k - 1).clamp(0, width - 1)), 0.0)
    mass = (values * (values >= k_edge)).sum(-1, keepdim=True)
    whole = np.flatnonzero((settings.top_k == 0) & (settings.top_p < 1.0))
    if len(whole):
        mass[_to(whole, weights)] = _block_sums(_take(weights, whole)).sum(-1, keepdim=True)
    num_below = (values.cumsum(-1) < top_p * mass).sum(-1, keepdim=True)
    resolved = (top_p < 1.0) & (num_below < width)
    p_edge = torch.where(resolved, values.gather(1, num_below.clamp(max=width - 1)), 0.0)
    edge = torch.maximum(torch.maximum(k_edge, p_edge), _to(settings.min_p, weights)[:, None])

    ids, order = ids.sort(dim=-1)
    kept = (values * (values >= edge)).gather(1, order)
    chosen = ids.gather(1, _invert(kept.cumsum(-1), _uniform(settings, 0, weights)))[:, 0]
    if width == weights.shape[1]:
        return chosen, np.ones(len(ids), np.bool_)
    return chosen, (values[:, -1:] < edge)[:, 0].cpu().numpy()


def _draw_from_all(weights: Tensor, settings: DrawSettings) -> Tensor:
    """Draw from the whole vocabulary, again for the rows whose token the rules do not keep."""
    for row in np.flatnonzero(settings.top_k > 0).tolist():
        dropped = max(0, weights.shape[1] - int(settings.top_k[row]))
        weights[row].masked_fill_(weights[row] < weights[row].kthvalue(dropped + 1).values, 0.0)
    tokens = _pick(weights, _uniform(settings, 0, weights))
    rows = np.flatnonzero((settings.top_p < 1.0) | (settings.min_p > 0.0))
    if len(rows) == 0:
        return tokens
    weights, rules, drawn = _take(weights, rows), settings.take(rows), tokens[_to(rows, weights)]
    limit = _to(rules.top_p, weights) * _block_sums(weights).sum(-1)
    trial = 0
    while True:
        tokens[_to(rows, weights)] = drawn
        found = weights.gather(1, drawn[:, None])
        likelier = torch.where(weights > found, weights, 0.0)
        outside = (_to(rules.top_p, weights) < 1.0) & (_block_sums(likelier).sum(-1) >= limit)
        # The sum of a row without a finite maximum is not finite; there is no token to find.
        refused = (outside | (found[:, 0] < _to(rules.min_p, weights))) & limit.isfinite()
        again = refused.cpu().numpy()
        if not again.any():
            return tokens
        rows, rules, weights, limit = rows[again], rules.take(again), likelier[refused], limit[refused]
        trial += 1
        drawn = _pick(weights, _uniform(rules, trial, weights))


def _pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the cumulative distribution in two levels: which block of the vocabulary, then which token in it."""
    vocab_size = weights.shape[1]
    cumulative = _block_sums(weights).cumsum(-1)
    block = _invert(cumulative, uniforms)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)
    ids = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, ids.clamp(max=vocab_size - 1)).double().masked_fill_(ids >= vocab_size, 0.0).cumsum(-1)
    place = _invert(inside, (uniforms * cumulative[:, -1:] - before) / inside[:, -1:])
    return (block * _BLOCK + place)[:, 0].clamp(max=vocab_size - 1)


def _block_sums(weights: Tensor) -> Tensor:
    """float64[n, blocks]: mass of each block of the vocabulary. A sum over whole rows might round with the batch."""
    whole = weights.shape[1] // _BLOCK * _BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1)  # type: ignore[no-untyped-call]
    return torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], dim=1).double()


def _invert(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """int64[n, 1]: first place whose cumulative weight exceeds ``uniform * total``; its own weight is never 0."""
    total = cumulative[:, -1:]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)


def _uniform(settings: DrawSettings, trial: int, like: Tensor) -> Tensor:
    return _to(uniform(settings.keys, settings.positions, trial), like)[:, None]


def _take(tensor: Tensor, rows: Int64) -> Tensor:
    """Some rows in ascending order, without a copy if they are all."""
    return tensor if len(rows) == len(tensor) else tensor[_to(rows, tensor)]


def _to(array: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    return to_device(array, like.device)
