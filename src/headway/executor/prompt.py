"""Log probabilities of prompt tokens, for the requests that asked for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from headway.core.logprobs import PromptLogprobs
from headway.core.plan import StepPlan
from headway.executor.logprobs import LogprobRows, measure
from headway.executor.parameters import NOT_ASKED, SlotParameters

# Logits of so many prompt tokens at once: a whole chunk's would take hundreds of megabytes.
_TOKENS_AT_ONCE = 64


class Head(Protocol):
    """The model's output head: [m, hidden] -> float32[m, vocabulary]."""

    def __call__(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class PendingPrompt:
    """One row's share of a step, still on the device.

    Attributes:
        row: row of the plan.
        start: place in the prompt of the first entry.
        pieces: entries in order, without the ``None`` of place 0.
    """

    row: int
    start: int
    pieces: list[LogprobRows]

    def to_host(self) -> PromptLogprobs:
        """The same as plain objects."""
        entries = [entry for piece in self.pieces for entry in piece.to_host()]
        return PromptLogprobs(self.start, (None, *entries) if self.start == 0 else tuple(entries))


def prompt_logprobs(
    plan: StepPlan, parameters: SlotParameters, hidden: Tensor, token_table: Tensor, head: Head
) -> list[PendingPrompt]:
    """Log probabilities of the prompt tokens that this step's tokens predict.

    The token at position ``p`` predicts the one at ``p + 1``: a row that computes positions ``s .. e - 1`` gives the
    entries ``s + 1 .. e`` as far as they are prompt, and the first chunk also that of place 0.
    """
    first = np.cumsum(plan.num_scheduled) - plan.num_scheduled
    pending = []
    for row in np.flatnonzero(parameters.num_prompt_logprobs[plan.slots] != NOT_ASKED).tolist():
        slot, start = int(plan.slots[row]), int(plan.starts[row])
        end = min(start + int(plan.num_scheduled[row]), int(parameters.num_prompt[slot]) - 1)
        if start > 0 and end <= start:
            continue
        pieces = []
        for position in range(start, end, _TOKENS_AT_ONCE):
            stop = min(end, position + _TOKENS_AT_ONCE)
            offset = int(first[row]) - start
            targets = token_table[slot, position + 1 : stop + 1].long()
            num_top = np.full(stop - position, parameters.num_prompt_logprobs[slot])
            pieces.append(measure(head(hidden[offset + position : offset + stop]), targets, num_top))
        pending.append(PendingPrompt(row, 0 if start == 0 else start + 1, pieces))
    return pending
