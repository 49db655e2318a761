"""The contract between scheduler and executor: what to run in a step, and what came back.

Both are plain arrays and small tuples, cheap to copy, to send to another process and to write to a trace.

A *row* is one admitted request; its *slot* (0 <= slot < max_num_seqs) stays the same from admission until the
request leaves, so an executor can keep state per slot: the tokens, the block tables, the sampling parameters.
An executor learns everything from plans: ``admitted`` rows bring their full state, afterwards only what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headway.config import SamplingParams

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AdmittedRow:
    """Full state of a request that enters a slot in this step.

    Attributes:
        slot: where it lives until it leaves.
        handle: unique, increasing number of the request.
        request_id: the client's name for it.
        tokens: int32[num_tokens], prompt and, for a resumed request, the outputs so far.
        num_prompt_tokens: how many of them are prompt.
        num_computed_tokens: how many already have KV (prefix hit or swapped in), so the row starts there.
        block_ids: per cache group, int32[held]: the block table, including the blocks taken in this step.
        sampling: how to choose its tokens.
        resumed: whether it ran before and was preempted.
        ending_token_ids: ids that end the output, and must not be sampled before ``sampling.min_tokens``.
    """

    slot: int
    handle: int
    request_id: str
    tokens: Int32
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[Int32, ...]
    sampling: SamplingParams
    resumed: bool
    ending_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class NewBlocks:
    """Blocks appended to the tables of one cache group in this step, for rows that were already there.

    Attributes:
        slots: int32[k], whose table.
        index: int32[k], at which place in the table.
        block_ids: int32[k], which block.
    """

    slots: Int32
    index: Int32
    block_ids: Int32


@dataclass(frozen=True)
class StepPlan:
    """What one step computes.

    Row ``i`` runs ``num_scheduled[i] >= 1`` tokens of the request in ``slots[i]``, at positions
    ``starts[i] .. starts[i] + num_scheduled[i] - 1``, and samples one token after the last of them if
    ``samples[i]``. Rows are in policy order, running ones first, then the admitted ones.

    Order for the executor: copy ``swap_out``, then ``swap_in``; drop the state of ``released`` slots, enter
    ``admitted`` rows, append ``new_blocks`` (also to rows that got no token in the end); then run the forward pass.
    What fails does not keep the rest from being done: the tables follow the plan even if its copies fail.
    Plans are executed in order, so a copy comes after every earlier step that writes its source and before every step
    that uses its target.

    Attributes:
        step: number of the step, from 1.
        slots, num_scheduled, starts: int32[n].
        samples: bool[n].
        new_blocks: one entry per cache group.
        admitted: rows that entered a slot in this step.
        swap_out: int32[k, 2], (device block, host block) pairs to copy to the host.
        swap_in: int32[k, 2], (host block, device block) pairs to copy back.
        released: int32[r], slots whose request left since the last plan (a slot may be admitted again at once).
    """

    step: int
    slots: Int32
    num_scheduled: Int32
    starts: Int32
    samples: Bool
    new_blocks: tuple[NewBlocks, ...]
    admitted: tuple[AdmittedRow, ...]
    released: Int32
    swap_out: Int32 = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    swap_in: Int32 = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.num_scheduled.sum())


@dataclass(frozen=True)
class StepResult:
    """What the executor brings back for one plan, row for row.

    Attributes:
        step: the plan's number.
        tokens: int32[n, w], sampled tokens (w is 1 without speculative decoding); cells beyond ``counts`` are -1.
        counts: int32[n], how many tokens of each row are valid; 0 for rows that do not sample.
        logprobs: executor's own data about the sampled tokens, by row index; the core never looks at it.
        prompt_logprobs: the same for prompt tokens computed in this step, by row index.
        failed: row index -> message, for rows whose computation failed; their requests end with an error.
        forward_s: seconds the step's computation took, 0 if not measured.
        copy_s: seconds its swap copies took, 0 if there were none or they were not measured.
        lost_host_blocks: int32[k], targets of the plan's ``swap_out`` that do not hold what was to be copied there.
        lost_plan: the executor may not have taken the plan in: neither its copies nor its ``new_blocks``. All its
            rows have failed then.
    """

    step: int
    tokens: Int32
    counts: Int32
    logprobs: dict[int, object] = field(default_factory=dict)
    prompt_logprobs: dict[int, object] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    forward_s: float = 0.0
    copy_s: float = 0.0
    lost_host_blocks: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    lost_plan: bool = False
