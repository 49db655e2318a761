"""How much KV memory must be free before a request starts (docs/design/step.md, rule 4.4).

Starting too eagerly ends in preemptions, starting too timidly leaves memory idle. Each way is one function: it says
how many blocks the candidate needs besides those it starts from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.core.candidate import Candidate
from headway.core.plan import Int32
from headway.core.state import SchedulerState


def blocks_to_start(state: SchedulerState, candidate: Candidate, without: Sequence[int] = ()) -> int:
    """Free blocks, of all groups, that the candidate needs before it may start, hit blocks not counted.

    A resumed request takes all blocks of its known tokens and one more at once, so none of the eager ways applies.

    Args:
        without: slots of rows that would be displaced for it, so that nothing is kept for them.
    """
    groups, request = state.cache.num_groups, candidate.request
    certain = groups * candidate.gate - candidate.start.num_adopted
    how = state.config.reservation
    if how == "nothing" and request.num_preemptions == 0:
        first = min(candidate.want, state.config.max_num_batched_tokens)
        return groups * state.blocks_for(candidate.start.num_computed + first) - candidate.start.num_adopted
    if how == "all":
        return max(certain, _all_to_the_end(state, candidate, _staying(state, without)))
    if how == "predicted":
        return max(certain, _predicted_peak(state, candidate, _staying(state, without)))
    return certain


def reserved_by(state: SchedulerState) -> str:
    """With everything reserved: the running request that most blocks are kept for; else nobody."""
    slots = state.rows.slots
    if state.config.reservation != "all" or not len(slots):
        return ""
    promised = _promised(state, slots)
    return state.columns.request(int(slots[int(np.argmax(promised))])).request_id


def _staying(state: SchedulerState, without: Sequence[int]) -> Int32:
    """Slots of the rows without those that would be displaced."""
    slots = state.rows.slots
    return slots[~np.isin(slots, without)] if without else slots


def _promised(state: SchedulerState, slots: Int32) -> Int32:
    """Blocks per group that each row may still take until its longest end: int32[n]."""
    columns = state.columns
    promised: Int32 = np.maximum(-(-columns.end_len[slots] // state.cache.block_size) - columns.held[slots], 0)
    return promised


def _end_len(state: SchedulerState, candidate: Candidate) -> int:
    """Known length at which the candidate ends at the latest; never more than the pool holds alone."""
    request, longest = candidate.request, state.config.max_model_len
    if request.sampling.max_tokens is not None:
        longest = min(longest, request.num_prompt_tokens + request.sampling.max_tokens)
    return min(longest, state.kv.pool.num_blocks // state.cache.num_groups * state.cache.block_size)


def _all_to_the_end(state: SchedulerState, candidate: Candidate, slots: Int32) -> int:
    """Its own blocks up to its end, and all that the rows in ``slots`` may still take."""
    groups = state.cache.num_groups
    own = groups * state.blocks_for(_end_len(state, candidate)) - candidate.start.num_adopted
    return own + groups * int(_promised(state, slots).sum())


def _predicted_peak(state: SchedulerState, candidate: Candidate, slots: Int32) -> int:
    """Blocks beyond those held now at the predicted peak of memory use, if the candidate ran with these rows.

    Past-Future scheduling (Gong et al., ASPLOS 2025, section 4): with requests sorted by the steps they still run,
    longest first, memory peaks just before one of them ends; then it and all that outlive it hold what they have now
    plus as many tokens as it still had to come.
    """
    columns, request = state.columns, candidate.request
    size, groups = state.cache.block_size, state.cache.num_groups
    known = np.append(columns.known[slots], request.num_tokens)
    prompts = np.array([columns.request(slot).num_prompt_tokens for slot in slots.tolist()], np.int32)
    outputs = np.append(columns.known[slots] - prompts, request.num_output_tokens)
    longest = np.append(columns.end_len[slots], _end_len(state, candidate)) - known
    rest = state.output_lengths.expected_rest(outputs, longest)
    order = np.argsort(-rest, kind="stable")
    tokens, rest = known[order].astype(np.int64), rest[order]
    living = np.arange(1, len(order) + 1)
    peak = int((np.cumsum(tokens) + living * (rest + size)).max())
    held = groups * int(columns.held[slots].sum()) + candidate.start.num_adopted
    blocks = groups * -(-peak // size)
    # Rounding up must not keep out a request that would run alone; beside others, a peak above the pool is no start.
    return (blocks if len(slots) else min(blocks, state.kv.pool.num_blocks)) - held
