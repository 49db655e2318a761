"""From logits to tokens, for all sampling rows of a step at once.

A step reads the parameter columns of its rows and does only what some row needs: if all are greedy and nothing changes
their logits, that is one ``max``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.core.plan import Int32, Int64
from headway.executor import edits, logprobs
from headway.executor.bans import banned_tokens
from headway.executor.draw import DrawSettings, draw
from headway.executor.logprobs import LogprobRows
from headway.executor.masks import RowMasks
from headway.executor.parameters import NOT_ASKED, SlotParameters
from headway.executor.tensors import to_device


@dataclass(frozen=True)
class SampledRows:
    """One token for each of ``m`` rows, still on the device.

    Attributes:
        tokens: int64[m]; 0 for bad rows.
        bad: bool[m], rows whose logits have no finite maximum, so that nothing could be sampled.
        logprobs: of the rows listed in ``logprob_rows`` int64[k]; ``None`` if there are none.
    """

    tokens: Tensor
    bad: Tensor
    logprob_rows: Int64
    logprobs: LogprobRows | None


class Sampler:
    """Chooses tokens with the parameters of :class:`SlotParameters`.

    Order: raw log probabilities; forms, penalties, logit bias, bad words (:mod:`.bans`), stop tokens before
    ``min_tokens`` (:mod:`.edits`); then the likeliest token for temperature 0, and for all others
    :func:`~headway.executor.draw.draw`.
    """

    def __init__(self, parameters: SlotParameters) -> None:
        self._parameters = parameters

    def sample(
        self, logits: Tensor, slots: Int32, positions: Int64, token_table: Tensor, masks: RowMasks | None = None
    ) -> SampledRows:
        """Choose a token per row.

        Args:
            logits: float32[m, vocabulary], m >= 1; overwritten.
            slots: int32[m], whose rows these are.
            positions: int64[m], place of the token to be chosen in its sequence; equal to the number of tokens so far.
            token_table: int32[max_num_seqs, max_model_len], the tokens so far.
            masks: what rows that have a form may choose.
        """
        asked = np.flatnonzero(self._parameters.num_logprobs[slots] != NOT_ASKED)
        raw = logits[to_device(asked, logits.device)] if len(asked) else None
        if masks is not None and len(masks.rows):
            edits.keep_allowed(logits, masks.rows, masks.bits)
        self._edit(logits, slots, positions, token_table)
        best, tokens = logits.max(dim=-1)
        random = np.flatnonzero(self._parameters.temperature[slots] > 0.0)
        if len(random):
            self._draw(logits, tokens, random, slots, positions)
        bad = ~torch.isfinite(best)
        tokens.masked_fill_(bad, 0)
        if raw is None:
            return SampledRows(tokens, bad, asked, None)
        chosen = tokens[to_device(asked, logits.device)]
        num_top = self._parameters.num_logprobs[slots[asked]]
        return SampledRows(tokens, bad, asked, logprobs.measure(raw, chosen, num_top))

    def _edit(self, logits: Tensor, slots: Int32, positions: Int64, token_table: Tensor) -> None:
        """Penalties, bias, bad words and forbidden stop tokens of the rows that have them."""
        columns = self._parameters
        penalised = np.flatnonzero(columns.penalised[slots])
        if len(penalised):
            places = slots[penalised].astype(np.int64)
            penalties = edits.Penalties(
                rows=penalised,
                slots=places,
                num_prompt=columns.num_prompt[places],
                num_tokens=positions[penalised],
                repetition=columns.repetition[places],
                presence=columns.presence[places],
                frequency=columns.frequency[places],
            )
            edits.apply_penalties(logits, token_table, penalties)
        biased = np.flatnonzero(columns.biased[slots]).tolist()
        if biased:
            bias = [columns.bias[int(slots[row])] for row in biased]
            edits.add_bias(logits, biased, [ids for ids, _ in bias], [values for _, values in bias])
        banned = np.flatnonzero(columns.banned[slots])
        if len(banned):
            places = slots[banned].astype(np.int64)
            bans = [columns.bans[slot] for slot in places.tolist()]
            ids = banned_tokens(bans, places, columns.num_prompt[places], positions[banned], token_table)
            edits.forbid(logits, banned.tolist(), ids)
        short = np.flatnonzero(positions - columns.num_prompt[slots] < columns.min_tokens[slots]).tolist()
        if short:
            edits.forbid(logits, short, [columns.stop_ids[int(slots[row])] for row in short])

    def _draw(self, logits: Tensor, tokens: Tensor, random: Int64, slots: Int32, positions: Int64) -> None:
        """Overwrite ``tokens`` for the rows listed in ``random``."""
        columns, places = self._parameters, slots[random]
        settings = DrawSettings(
            temperature=columns.temperature[places],
            top_k=columns.top_k[places],
            top_p=columns.top_p[places],
            min_p=columns.min_p[places],
            keys=columns.keys[places],
            positions=positions[random],
        )
        if len(random) == len(tokens):
            tokens.copy_(draw(logits, settings))
        else:
            rows = to_device(random, logits.device)
            tokens[rows] = draw(logits[rows], settings)
