"""Runs plans on a model: state of the slots, forward pass, sampling, results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headway.config import CacheConfig, ConfigError
from headway.config.structured import FAILED
from headway.core.plan import Int64, StepPlan, StepResult
from headway.executor.buffers import InputBuffers
from headway.executor.host_kv import HostKV
from headway.executor.masks import ConstrainedRows, FormKeeper, Grammars, RowMasks
from headway.executor.memory import allocate_kv, keep_freed_memory
from headway.executor.parameters import SlotParameters
from headway.executor.prompt import PendingPrompt, prompt_logprobs
from headway.executor.sampler import SampledRows, Sampler
from headway.executor.tensors import to_device
from headway.executor.timing import Moment, moment, seconds_between
from headway.models.config import ModelConfig
from headway.models.ops.attention import BatchMeta

STEP_PARTS = ("copy", "build", "forward", "sample", "collect")
KV_DTYPES = ("auto", "float32", "float16", "bfloat16")


class Model(Protocol):
    """What the executor needs of a model; :class:`~headway.models.llama.DecoderModel` is one."""

    config: ModelConfig
    device: torch.device
    compute_dtype: torch.dtype

    def forward(self, token_ids: Tensor, kv_caches: Sequence[Tensor], meta: BatchMeta) -> Tensor:
        """int64[T] -> hidden states [T, hidden]; writes the KV of these tokens."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, hidden] -> float32[m, vocabulary]."""
        ...


@dataclass
class _PendingStep:
    """A step that was submitted: what it computes, still on the device, and what is known to have failed.

    Attributes:
        rows: int64[m], the plan's rows that sample.
        constrained: those of them that have a form.
        failed: row -> message.
        entered: whether the tables follow the plan, so that later plans may build on it.
        times: seconds spent, by part.
        moments: on the device's time line: before the copies, after them, and after everything.
    """

    plan: StepPlan
    rows: Int64
    constrained: ConstrainedRows | None = None
    sampled: SampledRows | None = None
    prompts: list[PendingPrompt] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    entered: bool = False
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEP_PARTS, 0.0))
    moments: list[Moment] = field(default_factory=list)

    def fail_bad(self, row: int, *, is_banned: bool) -> None:
        """Nothing could be sampled for a row; ``is_banned`` if token sequences are banned in it."""
        message = "the model's scores have no finite maximum, so no token could be sampled"
        if self.constrained is not None and row in self.rows[self.constrained.rows]:
            message = f"{FAILED}no token is left that its form and its other parameters allow"
        elif is_banned:
            message = "no token is left that its bad words and its other parameters allow"
        self.failed.setdefault(row, message)

    def lap(self, part: str, start: float) -> float:
        """Book the time since ``start`` on ``part``; the time now."""
        now = time.perf_counter()
        self.times[part] += now - start
        return now

    def measured(self) -> tuple[float, float]:
        """Seconds that copies and computation took on the device; 0 for what failed or was not there."""
        if len(self.moments) < 3:
            return 0.0, 0.0
        start, copied, end = self.moments
        copies = len(self.plan.swap_out) + len(self.plan.swap_in)
        return seconds_between(start, copied) if copies else 0.0, seconds_between(copied, end)


class ModelExecutor:
    """Executes plans in the order of submission. Several may be in flight; results are collected in the same order.

    On the CPU a step is finished when ``submit`` returns. On a GPU ``submit`` only queues it, and ``collect`` waits;
    but a step with top-p, min-p or top-k has to look at its candidates, so its ``submit`` waits as well.

    A row whose logits hold no finite maximum fails alone, and so does one that cannot be entered. If a step raises an
    exception, a swap copy included, all its rows fail. A request that failed once fails in all later steps too, until
    its slot is given to another. Swap copies come before everything else; host blocks that a copy did not reach are
    named in the result, and a request that comes back from one of them all the same fails.

    Attributes:
        last_times: seconds that the step collected last spent in each of ``STEP_PARTS``. On a GPU, "forward" and
            "sample" are what it took to queue them, and "collect" the wait.
        total_times: the same, added up over all steps.
    """

    def __init__(
        self,
        model: Model,
        cache: CacheConfig,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: str = "auto",
        kv_dtype: str = "auto",
        seed: int = 0,
        grammars: Grammars | None = None,
        preallocate: bool = False,
    ) -> None:
        """Allocate the KV memory and the tables.

        Args:
            model: the model to run.
            cache: size of the KV pool.
            max_num_seqs, max_num_batched_tokens, max_model_len: limits that every plan keeps.
            device: "auto" is where the model is; anything else must name that same place.
            kv_dtype: one of ``KV_DTYPES``; "auto" is that of the model's activations.
            seed: requests without a seed of their own draw from this one and their handle.
            grammars: what keeps outputs to their forms; without it, requests that have one fail.
            preallocate: take all memory for KV blocks now; otherwise, on a CPU, as blocks are first written to.

        Raises:
            KVMemoryError: the KV pool, or the host's, does not fit into memory.
            ConfigError: another argument cannot be used; or memory was free, and was not any more when it was taken.
        """
        if device != "auto" and torch.device(device).type != model.device.type:
            raise ConfigError("device", device, f"must be the model's device, {model.device}")
        if kv_dtype not in KV_DTYPES:
            raise ConfigError("kv_dtype", kv_dtype, f"must be one of {', '.join(KV_DTYPES)}")
        if cache.num_groups != 1:
            raise ConfigError("num_groups", cache.num_groups, "must be 1: all layers of this model share their blocks")
        self.device = model.device
        dtype = model.compute_dtype if kv_dtype == "auto" else getattr(torch, kv_dtype)
        if self.device.type == "cpu":
            keep_freed_memory()
        self._model = model
        self._max_num_batched_tokens = max_num_batched_tokens
        self._kv = allocate_kv(model.config, cache, dtype, self.device, preallocate=preallocate)
        self._host = self._make_host(cache.num_host_blocks, preallocate) if cache.num_host_blocks else None
        self._buffers = InputBuffers(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks + 1,
            num_groups=cache.num_groups,
            device=self.device,
        )
        self._parameters = SlotParameters(max_num_seqs, model.config.vocab_size, seed)
        self._sampler = Sampler(self._parameters)
        self._forms = FormKeeper(grammars, max_num_seqs, model.config.vocab_size)
        self._pending: deque[_PendingStep] = deque()
        self._broken: dict[int, str] = {}
        self.last_times = dict.fromkeys(STEP_PARTS, 0.0)
        self.total_times = dict.fromkeys(STEP_PARTS, 0.0)

    @property
    def num_in_flight(self) -> int:
        """Plans submitted and not collected."""
        return len(self._pending)

    @property
    def kv_bytes(self) -> int:
        """Memory that the KV pool takes in the end."""
        return self._kv.nbytes

    @property
    def kv_resident_bytes(self) -> int:
        """Memory that it takes now."""
        return self._kv.resident_bytes()

    @property
    def host_kv_bytes(self) -> int:
        """Host memory that swapped blocks take in the end."""
        return self._host.nbytes if self._host is not None else 0

    @property
    def host_kv_resident_bytes(self) -> int:
        """Host memory that they take now."""
        return self._host.resident_bytes() if self._host is not None else 0

    def submit(self, plan: StepPlan) -> None:
        """Start ``plan``.

        Raises:
            ConfigError: the plan has no rows, or more tokens than ``max_num_batched_tokens``; nothing was done.
        """
        if plan.num_rows == 0:
            raise ConfigError("plan", plan.step, "must have at least one row")
        if plan.num_tokens > self._max_num_batched_tokens:
            limit = f"must be at most max_num_batched_tokens ({self._max_num_batched_tokens})"
            raise ConfigError("num_scheduled", plan.num_tokens, limit)
        step = _PendingStep(plan, np.flatnonzero(plan.samples))
        self._pending.append(step)
        try:
            with torch.inference_mode():
                self._run(step)
        except Exception as error:  # whatever a kernel raises, the other requests go on
            message = f"the step failed: {type(error).__name__}: {error}"
            step.failed = dict.fromkeys(range(plan.num_rows), message)

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result; :class:`RuntimeError` if there is none."""
        if not self._pending:
            raise RuntimeError("collect() without a plan in flight")
        start = time.perf_counter()
        step = self._pending.popleft()
        plan = step.plan
        try:
            result = self._to_host(step)
        except Exception as error:  # on a GPU, errors of a kernel surface here
            message = f"the step failed: {type(error).__name__}: {error}"
            step.failed = dict.fromkeys(range(plan.num_rows), message)
            if self._host is not None:
                self._host.lose(plan.swap_out[:, 1])
            result = self._to_host(_PendingStep(plan, step.rows, failed=step.failed, entered=step.entered))
        self._broken.update((int(plan.slots[row]), message) for row, message in result.failed.items())
        step.lap("collect", start)
        self.last_times = step.times
        for part, seconds in step.times.items():
            self.total_times[part] += seconds
        return result

    def _make_host(self, num_blocks: int, preallocate: bool) -> HostKV:
        """The host's blocks, beside what the device's will still take of the same memory."""
        promised = self._kv.nbytes - self._kv.resident_bytes() if self.device.type == "cpu" else 0
        return HostKV(self._kv.layers, num_blocks, promised_bytes=promised, preallocate=preallocate)

    def _run(self, step: _PendingStep) -> None:
        plan = step.plan
        start = time.perf_counter()
        step.moments.append(moment(self.device))
        try:
            self._copy(step)
        finally:  # whatever becomes of the copies, later plans build on what this one says of slots and tables
            step.moments.append(moment(self.device))
            start = step.lap("copy", start)
            self._admit(step)
        inputs, table = self._buffers.build(plan), self._buffers.token_table
        slots = plan.slots[step.rows]
        positions = (plan.starts + plan.num_scheduled)[step.rows].astype(np.int64)
        step.constrained = self._forms.catch_up(slots, positions, table)
        start = step.lap("build", start)
        hidden = self._model.forward(inputs.token_ids, self._kv.layers, inputs.metas[0])
        start = step.lap("forward", start)
        step.prompts = prompt_logprobs(plan, self._parameters, hidden, table, self._model.logits)
        if len(step.rows):
            logits = self._model.logits(hidden[to_device(inputs.last[step.rows], self.device)])
            step.sampled = self._sampler.sample(logits, slots, positions, table, self._masks(step))
            self._buffers.write_sampled(slots, positions, step.sampled.tokens)
        step.moments.append(moment(self.device))
        step.lap("sample", start)

    def _masks(self, step: _PendingStep) -> RowMasks | None:
        """What rows that have a form may choose; rows that cannot be kept to theirs fail."""
        if step.constrained is None:
            return None
        masks, failed = self._forms.masks(step.constrained)
        step.failed.update((int(step.rows[row]), message) for row, message in failed.items())
        return masks

    def _admit(self, step: _PendingStep) -> None:
        """Enter what is new. A request that cannot be entered fails; its row runs on the null block, for nothing."""
        self._forms.release(step.plan.released)
        for row in step.plan.admitted:
            self._broken.pop(row.slot, None)
            try:
                self._buffers.admit(row)
                self._parameters.admit(row)
                self._forms.admit(row)
            except Exception as error:  # whatever it is, memory that ran out included, it concerns this request alone
                self._buffers.clear(row.slot)
                message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
                step.failed[int(np.flatnonzero(step.plan.slots == row.slot)[0])] = f"it could not be entered: {message}"
        self._buffers.append(step.plan.new_blocks)
        step.entered = True

    def _copy(self, step: _PendingStep) -> None:
        """Make the plan's swap copies. A row that gets back what was lost on the host fails."""
        plan = step.plan
        if not len(plan.swap_out) and not len(plan.swap_in):
            return
        if self._host is None:
            raise ConfigError("num_host_blocks", 0, "must be above 0 for a plan that swaps")
        self._host.lose(plan.swap_out[:, 1])  # until the copies are made, whatever comes in between
        self._host.swap_out(plan.swap_out)
        ruined = self._host.swap_in(plan.swap_in)
        for row in plan.admitted if len(ruined) else ():
            if any(np.isin(block_ids, ruined).any() for block_ids in row.block_ids):
                place = int(np.flatnonzero(plan.slots == row.slot)[0])
                step.failed.setdefault(place, "its KV was lost: copying it to the host had failed")

    def _to_host(self, step: _PendingStep) -> StepResult:
        """The result of a step; what failed before, or fails now, delivers nothing."""
        plan = step.plan
        if step.sampled is not None:
            for row in step.rows[step.sampled.bad.cpu().numpy()].tolist():
                step.fail_bad(row, is_banned=bool(self._parameters.banned[plan.slots[row]]))
        failed = dict(step.failed)
        if self._broken:
            earlier = ((row, self._broken.get(slot)) for row, slot in enumerate(plan.slots.tolist()))
            failed.update((row, message) for row, message in earlier if message is not None)
        tokens = np.full((plan.num_rows, 1), -1, np.int32)
        counts = plan.samples.astype(np.int32)
        logprobs: dict[int, object] = {}
        if step.sampled is not None:
            tokens[step.rows, 0] = step.sampled.tokens.cpu().numpy()
            if step.sampled.logprobs is not None:
                rows = step.rows[step.sampled.logprob_rows].tolist()
                entries = step.sampled.logprobs.to_host()
                logprobs = {row: [entry] for row, entry in zip(rows, entries, strict=True) if row not in failed}
        prompts: dict[int, object] = {part.row: part.to_host() for part in step.prompts if part.row not in failed}
        if failed:
            counts[list(failed)] = 0
            tokens[list(failed)] = -1
        copy_s, forward_s = step.measured()
        stored = plan.swap_out[:, 1]
        return StepResult(
            plan.step,
            tokens,
            counts,
            logprobs,
            prompts,
            dict(sorted(failed.items())),
            forward_s,
            copy_s,
            lost_host_blocks=self._host.lost_among(stored) if self._host is not None else stored,
            lost_plan=not step.entered,
        )
