"""Changes to the logits before the draw, in this order: form, penalties, logit bias, bad words, tokens not allowed yet.

Penalties keep no counts. They read the tokens of the request from the token table in the step that samples, which
holds the prompt, the outputs and, on the device, also the samples still in flight. So there is nothing to rebuild when
a preempted request comes back, and nothing to keep for requests that did not ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from headway.core.plan import Int32, Int64
from headway.executor.tensors import to_device

Float32 = npt.NDArray[np.float32]

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED: Float32 = np.where(_BITS, 0.0, -np.inf).astype(np.float32)
"""float32[256, 8]: for each byte of a mask, what it adds to the logits of its eight tokens."""


@dataclass(frozen=True)
class Penalties:
    """Penalties of ``k`` rows.

    Attributes:
        rows: int64[k], which rows of the logits.
        slots: int64[k], their rows of the token table.
        num_prompt, num_tokens: int64[k], prompt tokens, and all tokens so far.
        repetition: float32[k]; logits of tokens seen in prompt or output are divided by it if positive and multiplied
            if negative (Keskar et al., "CTRL", 2019, with the sign rule of Hugging Face).
        presence, frequency: float32[k]; subtracted from the logits of tokens in the output, once and per occurrence.
    """

    rows: Int64
    slots: Int64
    num_prompt: Int64
    num_tokens: Int64
    repetition: Float32
    presence: Float32
    frequency: Float32


def keep_allowed(logits: Tensor, rows: Int64, bits: Int32) -> None:
    """Make tokens impossible in ``rows`` int64[k] that ``bits`` int32[k, words] do not allow, in place.

    What to add to eight logits is looked up by a byte: on a CPU that takes 20 us a row of 49,152, and filling by a mask
    of single tokens up to 170.
    """
    packed = to_device(bits.view(np.uint8).astype(np.int32), logits.device)
    added = functional.embedding(packed, to_device(_ADDED, logits.device)).flatten(1)[:, : logits.shape[1]]
    if len(rows) == len(logits):
        logits.add_(added)
    else:
        logits.index_add_(0, to_device(rows, logits.device), added)


def apply_penalties(logits: Tensor, token_table: Tensor, penalties: Penalties) -> None:
    """Change float32[m, vocabulary] in place; ``token_table`` is int32[slots, max_model_len]."""
    counts = penalties.num_tokens
    entry = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    device = logits.device
    tokens = token_table[to_device(penalties.slots[entry], device), to_device(place, device)].long()
    cells = tokens + to_device(penalties.rows[entry] * logits.shape[1], device)
    flat = logits.view(-1)
    # A token that occurs several times writes the same value several times.
    seen, factor = flat[cells], to_device(penalties.repetition[entry], device)
    flat[cells] = torch.where(seen > 0, seen / factor, seen * factor)
    output = np.flatnonzero(place >= penalties.num_prompt[entry])
    cells, entry = cells[to_device(output, device)], entry[output]
    flat[cells] = flat[cells] - to_device(penalties.presence[entry], device)
    flat.index_add_(0, cells, -to_device(penalties.frequency[entry], device))


def add_bias(logits: Tensor, rows: Sequence[int], ids: Sequence[Int64], values: Sequence[Float32]) -> None:
    """Add ``values[i]`` to the logits of tokens ``ids[i]`` in row ``rows[i]``, in place."""
    cells = to_device(_cells(rows, ids, logits.shape[1]), logits.device)
    logits.view(-1).index_add_(0, cells, to_device(np.concatenate(values), logits.device))


def forbid(logits: Tensor, rows: Sequence[int], ids: Sequence[Int64]) -> None:
    """Make tokens ``ids[i]`` impossible in row ``rows[i]``, in place."""
    logits.view(-1)[to_device(_cells(rows, ids, logits.shape[1]), logits.device)] = -torch.inf


def _cells(rows: Sequence[int], ids: Sequence[Int64], width: int) -> Int64:
    return np.concatenate([row * width + row_ids for row, row_ids in zip(rows, ids, strict=True)])
