"""Keeps outputs to their forms: which tokens each row may choose in a step.

A matcher moves on by what is in the token table, right before it is asked, never by what a step might deliver: tokens
of a prompt in chunks, of a step that failed or of one that was called off do not reach it. So there is nothing to take
back, a preempted request that comes back needs nothing but its tokens, and steps may be in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from headway.config import ConfigError, Structured
from headway.config.structured import FAILED
from headway.core.plan import AdmittedRow, Int32, Int64
from headway.executor.tensors import to_device

logger = logging.getLogger(__name__)


class Matcher(Protocol):
    """Where one output is in its form."""

    @property
    def error(self) -> str:
        """Why it cannot go on; empty if it can."""
        ...

    def consume(self, token_ids: list[int]) -> None:
        """Move on by tokens of the output."""
        ...


class Grammars(Protocol):
    """Makes matchers; :class:`~headway.executor.grammars.GuidanceGrammars` is one."""

    def start(self, form: Structured) -> Matcher:
        """A matcher for a new output; :class:`ConfigError` if the form cannot be used."""
        ...

    def fill(self, matchers: Sequence[Matcher], bits: Int32) -> None:
        """Write what each matcher allows next into its row of ``bits`` int32[rows, words], 32 tokens a word."""
        ...


@dataclass(frozen=True)
class ConstrainedRows:
    """Rows of a step that have a form.

    Attributes:
        rows: int64[k], places among the rows that sample.
        slots: int64[k], whose they are.
    """

    rows: Int64
    slots: Int64


@dataclass(frozen=True)
class RowMasks:
    """What ``k`` rows may choose.

    Attributes:
        rows: int64[k], places among the rows that sample.
        bits: int32[k, words]: bit ``i % 32`` of word ``i // 32`` says whether token ``i`` is allowed.
    """

    rows: Int64
    bits: Int32


class FormKeeper:
    """Matchers of all slots.

    Args:
        grammars: ``None`` if this executor keeps no forms.
        max_num_seqs: number of slots.
        vocab_size: columns of the logits.

    Order of calls per step: :meth:`release`, :meth:`admit`; :meth:`catch_up` before the forward pass is queued, so
    that reading the last tokens does not wait for it; :meth:`masks` after.
    """

    def __init__(self, grammars: Grammars | None, max_num_seqs: int, vocab_size: int) -> None:
        self._grammars = grammars
        self._words = -(-vocab_size // 32)
        self._max_num_seqs = max_num_seqs
        self._matchers: dict[int, Matcher] = {}
        self._errors: dict[int, str] = {}
        """slot -> what its matcher raised."""
        self._consumed = np.zeros(max_num_seqs, np.int64)
        """Tokens that the matcher of a slot knows of, the prompt's included."""
        self._bits: Int32 | None = None

    def has_form(self, slot: int) -> bool:
        """Whether the request in a slot has a form."""
        return slot in self._matchers

    def release(self, slots: Int32) -> None:
        """Requests left these slots."""
        if self._matchers:
            for slot in slots.tolist():
                self._forget(slot)

    def admit(self, row: AdmittedRow) -> None:
        """Enter a request into its slot.

        Raises:
            ConfigError: its form cannot be kept to.
        """
        self._forget(row.slot)
        form = row.sampling.structured
        if form is None:
            return
        if self._grammars is None:
            raise ConfigError("structured", form.kind, "is not supported by this executor")
        self._matchers[row.slot] = self._grammars.start(form)
        self._consumed[row.slot] = row.num_prompt_tokens

    def catch_up(self, slots: Int32, positions: Int64, token_table: Tensor) -> ConstrainedRows | None:
        """Move matchers on to the present.

        Args:
            slots: int32[m], rows that sample in this step.
            positions: int64[m], number of tokens of each so far.
            token_table: int32[max_num_seqs, max_model_len].

        Returns:
            The rows that have a form; ``None`` if there are none.
        """
        if not self._matchers:
            return None
        rows = np.array([row for row, slot in enumerate(slots.tolist()) if slot in self._matchers], np.int64)
        if not len(rows):
            return None
        places = slots[rows].astype(np.int64)
        counts = positions[rows] - self._consumed[places]
        self._consumed[places] = positions[rows]
        if counts.any():
            entry = np.repeat(np.arange(len(counts)), counts)
            offset = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
            cells = (places[entry], (positions[rows] - counts)[entry] + offset)
            tokens = token_table[tuple(to_device(index, token_table.device) for index in cells)].tolist()
            for slot, end, count in zip(places.tolist(), np.cumsum(counts).tolist(), counts.tolist(), strict=True):
                self._consume(slot, tokens[end - count : end])
        return ConstrainedRows(rows, places)

    def masks(self, constrained: ConstrainedRows) -> tuple[RowMasks, dict[int, str]]:
        """What the rows may choose next.

        Returns:
            The masks of the rows that could be asked, and of the others, by place among the rows that sample, why not.
        """
        if self._bits is None:
            self._bits = np.zeros((self._max_num_seqs, self._words), np.int32)
        slots = constrained.slots.tolist()
        errors = {row: self._errors[slot] for row, slot in enumerate(slots) if slot in self._errors}
        asked = [row for row in range(len(slots)) if row not in errors]
        found = self._fill([self._matchers[slots[row]] for row in asked], self._bits)
        errors |= {asked[place]: error for place, error in found.items()}
        kept = np.array([place for place in range(len(asked)) if place not in found], np.int64)
        rows = constrained.rows[np.array(asked, np.int64)[kept]]
        failed = {int(constrained.rows[row]): FAILED + error for row, error in errors.items()}
        return RowMasks(rows, self._bits[kept]), failed

    def _forget(self, slot: int) -> None:
        self._matchers.pop(slot, None)
        self._errors.pop(slot, None)

    def _consume(self, slot: int, token_ids: list[int]) -> None:
        try:
            self._matchers[slot].consume(token_ids)
        except Exception as error:
            self._errors[slot] = _describe(error)

    def _fill(self, matchers: Sequence[Matcher], bits: Int32) -> dict[int, str]:
        """Write the masks into the first rows; what went wrong, by place. One that raises does not spoil the others."""
        if not matchers or self._grammars is None:
            return {}
        try:
            self._grammars.fill(matchers, bits)
        except Exception as error:
            if len(matchers) == 1:
                return {0: _describe(error)}
            alone = [self._fill(matchers[place : place + 1], bits[place:]) for place in range(len(matchers))]
            return {place: errors[0] for place, errors in enumerate(alone) if errors}
        return {place: matcher.error for place, matcher in enumerate(matchers) if matcher.error}


def _describe(error: Exception) -> str:
    """What to tell the client; the log gets the rest."""
    logger.error("a matcher failed", exc_info=error)
    return f"{type(error).__name__}: {error}"
