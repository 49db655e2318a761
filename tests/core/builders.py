"""Schedulers, requests and runs with named defaults, so that a test states only what it varies.

The model of these tests is :class:`PrefixModel`: the next token is a hash of all tokens before it, so a request's
output depends on nothing but its prompt, and two runs can be compared token by token.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.events import Admitted, Event, Finished, Preempted, StepOutput
from headway.core.plan import StepPlan, StepResult
from headway.core.reasons import WaitReason
from headway.core.request import Request, RequestRefused
from headway.core.scheduler import Scheduler

EOS = 1
"""End-of-text token of the tests' vocabulary."""

_SCHEDULER_FIELDS = {spec.name for spec in dataclasses.fields(SchedulerConfig)}


def make_configs(**overrides: Any) -> tuple[SchedulerConfig, CacheConfig]:
    """Options of a small scheduler; overrides may be of either dataclass."""
    scheduler = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    cache = {"block_size": 4, "num_blocks": 100}
    for name, value in overrides.items():
        (scheduler if name in _SCHEDULER_FIELDS else cache)[name] = value
    return SchedulerConfig(**scheduler), CacheConfig(**cache)


def make_scheduler(**overrides: Any) -> Scheduler:
    """A small scheduler: 4 slots, 64 tokens a step, model length 64, 100 blocks of 4 tokens."""
    return Scheduler(*make_configs(**overrides))


def make_prompt(name: str, length: int) -> list[int]:
    """``length`` tokens that no prompt of another name shares, none of them ``EOS``."""
    return [2 + zlib.crc32(f"{name}:{place}".encode()) % 30000 for place in range(length)]


def make_request(
    request_id: str = "a",
    prompt: int | Sequence[int] = 8,
    *,
    max_tokens: int | None = 4,
    priority: int = 0,
    cache_salt: str = "",
    tenant: str = "",
    deadline_s: float | None = None,
    slo: str = "",
    eos_token_ids: Sequence[int] = (EOS,),
    **sampling: Any,
) -> Request:
    """A request; a prompt given as a number is that many tokens of its own. Greedy, with ``ignore_eos``."""
    tokens = make_prompt(request_id, prompt) if isinstance(prompt, int) else prompt
    params = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.0, **sampling})
    return Request(
        request_id,
        tokens,
        params,
        eos_token_ids=eos_token_ids,
        priority=priority,
        cache_salt=cache_salt,
        tenant=tenant,
        deadline_s=deadline_s,
        slo=slo,
    )


def next_token(prefix: Sequence[int], vocabulary: int) -> int:
    """The token that follows ``prefix``."""
    return zlib.crc32(np.asarray(prefix, np.int32).tobytes()) % vocabulary


def expected_output(prompt: Sequence[int], count: int, vocabulary: int = 30000) -> list[int]:
    """The first ``count`` tokens after ``prompt``."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocabulary))
    return tokens[len(prompt) :]


class PrefixModel:
    """Executes plans on lists of tokens, by slot, as plans tell them; results wait until they are collected.

    It checks little; :class:`headway.sim.fake.FakeExecutor`, which can take its place, checks every block it reads.

    Args:
        vocabulary: sampled tokens are below this.
        failures: step -> row -> message, rows whose computation fails.
    """

    def __init__(self, vocabulary: int = 30000, failures: Mapping[int, Mapping[int, str]] | None = None) -> None:
        self.vocabulary = vocabulary
        self.failures = failures or {}
        self.tokens: dict[int, list[int]] = {}
        self.results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Run a plan with rows."""
        for slot in plan.released.tolist():
            del self.tokens[slot]
        for row in plan.admitted:
            assert row.slot not in self.tokens, f"slot {row.slot} is admitted again without being released"
            self.tokens[row.slot] = row.tokens.tolist()
        failed = self.failures.get(plan.step, {})
        sampled = np.full((plan.num_rows, 1), -1, np.int32)
        for row, slot in enumerate(plan.slots.tolist()):
            tokens, end = self.tokens[slot], int(plan.starts[row] + plan.num_scheduled[row])
            assert end <= len(tokens), f"slot {slot} runs up to {end} of {len(tokens)} tokens"
            if plan.samples[row]:
                assert end == len(tokens), f"slot {slot} samples after token {end} of {len(tokens)}"
                tokens.append(next_token(tokens, self.vocabulary))
                sampled[row] = -1 if row in failed else tokens[-1]
        self.results.append(StepResult(plan.step, sampled, (sampled[:, 0] >= 0).astype(np.int32), failed=dict(failed)))

    def collect(self) -> StepResult:
        """The result of the oldest plan that was not collected."""
        return self.results.popleft()


@dataclass
class Run:
    """What happened in :func:`drive`, by step number (from 1) and request name.

    Attributes:
        plans, reasons: of every step, those without rows included.
        outputs: delivered tokens.
        token_steps: the steps that computed them.
        scheduled: name -> step -> tokens computed for it.
    """

    plans: list[StepPlan] = field(default_factory=list)
    reasons: list[dict[str, WaitReason]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    token_steps: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, RequestRefused] = field(default_factory=dict)
    scheduled: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def finished(self) -> dict[str, str]:
        """name -> why it ended."""
        return {event.request_id: event.reason.value for event in self.events if isinstance(event, Finished)}

    @property
    def preemptions(self) -> list[Preempted]:
        return [event for event in self.events if isinstance(event, Preempted)]

    @property
    def admissions(self) -> list[Admitted]:
        return [event for event in self.events if isinstance(event, Admitted)]

    def admitted_at(self, name: str) -> list[int]:
        """Steps in which the request entered a slot."""
        return [event.step for event in self.admissions if event.request_id == name]

    def reason(self, step: int, name: str) -> str:
        """Why the request was not served in a step; empty if it was."""
        reason = self.reasons[step - 1].get(name)
        return reason.code.value if reason else ""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens of all plans together."""
        return sum(plan.num_tokens for plan in self.plans)


class Watcher:
    """Called around every step of :func:`drive`; the base does nothing."""

    def added(self, request: Request) -> None:
        """A request was taken."""

    def refused(self, request: Request) -> None:
        """A request was not taken."""

    def outside(self, events: Sequence[Event]) -> None:
        """Events of adds and aborts."""

    def scheduled(self, scheduler: Scheduler, plan: StepPlan, events: Sequence[Event]) -> None:
        """A plan was made."""

    def updated(
        self, scheduler: Scheduler, plan: StepPlan, result: StepResult, output: StepOutput, events: Sequence[Event]
    ) -> None:
        """A plan's result was taken in."""


def drive(
    scheduler: Scheduler,
    arrivals: Iterable[Request] | Mapping[int, Sequence[Request]],
    *,
    aborts: Mapping[int, Sequence[str]] | None = None,
    late_aborts: Mapping[int, Sequence[str]] | None = None,
    depth: int = 1,
    model: Any = None,
    max_steps: int = 2000,
    max_idle: int = 3,
    watcher: Watcher | None = None,
) -> Run:
    """Run a scheduler until everything has ended.

    Args:
        arrivals: requests for step 1, or step -> requests that arrive before it.
        aborts: step -> names aborted before that step is scheduled.
        late_aborts: step -> names aborted after it was scheduled, before its result is read.
        depth: plans made before the oldest one's result is read.
        model: executes plans: a ``PrefixModel`` by default.
        max_steps: more schedule calls than this fail the test.
        max_idle: more successive plans without rows than this, with requests there and none in flight, fail the test.
        watcher: looks on.
    """
    return _Drive(scheduler, model or PrefixModel(), watcher or Watcher(), depth).run(
        dict(arrivals) if isinstance(arrivals, Mapping) else {1: list(arrivals)},
        aborts or {},
        late_aborts or {},
        max_steps,
        max_idle,
    )


@dataclass
class _Drive:
    scheduler: Scheduler
    model: Any
    watcher: Watcher
    depth: int
    result: Run = field(default_factory=Run)
    in_flight: deque[StepPlan] = field(default_factory=deque)
    names: dict[int, str] = field(default_factory=dict)
    in_slot: dict[int, str] = field(default_factory=dict)

    def run(
        self,
        arrivals: Mapping[int, Sequence[Request]],
        aborts: Mapping[int, Sequence[str]],
        late_aborts: Mapping[int, Sequence[str]],
        max_steps: int,
        max_idle: int,
    ) -> Run:
        last_arrival = max(arrivals, default=0)
        step = num_idle = 0
        while self.scheduler.has_unfinished or step < last_arrival:
            step += 1
            assert step <= max_steps, f"not finished after {max_steps} steps: {self.scheduler.wait_reasons()}"
            self._add(arrivals.get(step, ()), step)
            self._abort(aborts.get(step, ()), step)
            plan = self._schedule(step)
            if plan.num_rows:
                self.model.submit(plan)
                self.in_flight.append(plan)
            idle = not self.in_flight and self.scheduler.has_unfinished
            num_idle = num_idle + 1 if idle else 0
            assert num_idle <= max_idle, f"nothing moves at step {step}: {self.scheduler.wait_reasons()}"
            self._abort(late_aborts.get(step, ()), step)
            if len(self.in_flight) >= self.depth or (self.in_flight and not plan.num_rows):
                self._update(step)
        while self.in_flight:
            self._update(step)
        return self.result

    def _add(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            try:
                self.scheduler.add(request, now)
            except RequestRefused as refusal:
                self.result.refused[request.request_id] = refusal
                self.watcher.refused(request)
            else:
                self.names[request.handle] = request.request_id
                self.result.outputs.setdefault(request.request_id, [])
                self.watcher.added(request)
        self.watcher.outside(self._take_events())

    def _abort(self, names: Sequence[str], now: float) -> None:
        handles = {name: handle for handle, name in self.names.items()}  # of several, that of the last one
        for name in names:
            self.scheduler.abort(handles.get(name, -1), now)
        self.watcher.outside(self._take_events())

    def _schedule(self, now: float) -> StepPlan:
        plan = self.scheduler.schedule(now)
        events = self._take_events()
        for event in events:
            if isinstance(event, Admitted):
                self.in_slot[event.slot] = event.request_id
        for slot, tokens in zip(plan.slots.tolist(), plan.num_scheduled.tolist(), strict=True):
            self.result.scheduled.setdefault(self.in_slot[slot], {})[plan.step] = tokens
        self.result.plans.append(plan)
        self.result.reasons.append(self.scheduler.wait_reasons())
        self.watcher.scheduled(self.scheduler, plan, events)
        return plan

    def _update(self, now: float) -> None:
        plan, result = self.in_flight.popleft(), self.model.collect()
        output = self.scheduler.update(plan, result, now)
        for handle, tokens, count in zip(output.handles.tolist(), output.tokens, output.counts, strict=True):
            name = self.names[handle]
            self.result.outputs[name] += tokens[:count].tolist()
            self.result.token_steps.setdefault(name, []).append(plan.step)
        self.watcher.updated(self.scheduler, plan, result, output, self._take_events())

    def _take_events(self) -> list[Event]:
        events = self.scheduler.take_events()
        self.result.events += events
        return events
