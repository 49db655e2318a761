"""What a run looked like, request by request and step by step: folded from a trace, drawn by ``picture``.

Steps are counted by their number in the trace; steps without rows appear only if something happened in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.cli.replay import Replay, ReplayedStep
from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Event, Finished, Preempted, Queued
from headway.core.plan import StepPlan
from headway.core.request import FinishReason
from headway.engine.trace import TraceReader


@dataclass(frozen=True)
class Chunk:
    """Prompt tokens (after a preemption also output tokens) computed in one step.

    Attributes:
        step: when.
        num_tokens: how many.
        num_again: how many of them had been computed before a preemption.
        is_part: whether the admission needed more than this one step for its tokens.
    """

    step: int
    num_tokens: int
    num_again: int
    is_part: bool


@dataclass(frozen=True)
class Hit:
    """Tokens that an admission found in the prefix cache."""

    step: int
    num_tokens: int
    resumed: bool


@dataclass
class RequestLine:
    """One request through the run.

    Attributes:
        chunks: steps that computed known tokens.
        decodes: steps that computed one token it had sampled itself.
        waits: steps in which it was live and got nothing, with the code of the reason.
        finish: step and reason of its end, if it came.
    """

    handle: int
    request_id: str
    num_prompt_tokens: int
    queued_step: int
    admissions: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    waits: list[tuple[int, str]] = field(default_factory=list)
    preemptions: list[Preempted] = field(default_factory=list)
    finish: tuple[int, str] | None = None
    num_output_tokens: int = 0
    _known: int = 0
    _computed_before: int = 0

    @property
    def num_again(self) -> int:
        """Tokens computed a second time because of preemptions."""
        return sum(chunk.num_again for chunk in self.chunks)


@dataclass(frozen=True)
class StepLine:
    """One step.

    Attributes:
        num_decode, num_prefill: tokens of decodes and of chunks.
        num_again: those of the chunks that had been computed before a preemption.
        num_held, num_cached: KV blocks that requests held, and free ones whose content could still be found, as the
            step began to run.
    """

    step: int
    num_decode: int
    num_prefill: int
    num_again: int
    num_held: int
    num_cached: int


@dataclass
class Timeline:
    """A run.

    Attributes:
        requests: in order of arrival.
        steps: those with rows.
        run: what the writer of the trace said about the run.
    """

    scheduler: SchedulerConfig
    cache: CacheConfig
    run: dict[str, object]
    requests: list[RequestLine] = field(default_factory=list)
    steps: list[StepLine] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Number of the last step."""
        return self.steps[-1].step if self.steps else 0


def read_timeline(trace: TraceReader) -> Timeline:
    """Fold a trace.

    Raises:
        TraceError: the trace is damaged.
        ReplayDiffers: this version would have decided differently.
    """
    timeline = Timeline(trace.header.scheduler, trace.header.cache, dict(trace.header.run))
    fold(timeline, Replay(trace))
    return timeline


def fold(timeline: Timeline, steps: Iterable[ReplayedStep]) -> None:
    """Enter all steps of a run into an empty timeline."""
    by_handle: dict[int, RequestLine] = {}
    by_slot: dict[int, RequestLine] = {}
    live: dict[str, RequestLine] = {}
    for step in steps:
        for event in step.events:
            if isinstance(event, Queued):
                line = RequestLine(event.handle, event.request_id, event.num_prompt_tokens, event.step)
                by_handle[event.handle] = live[event.request_id] = line
                timeline.requests.append(line)
                continue
            _enter_event(by_handle[event.handle], event, step.aborts)
            if isinstance(event, Finished):
                del live[event.request_id]
        if step.plan is None:
            continue
        for row in step.plan.admitted:
            by_slot[row.slot] = line = by_handle[row.handle]
            line._known = len(row.tokens)
        if step.plan.num_rows:
            timeline.steps.append(_enter_rows(by_slot, step.plan, step))
        for request_id, reason in step.reasons.items():
            live[request_id].waits.append((step.plan.step, reason.code.value))


def _enter_event(line: RequestLine, event: Event, aborts: dict[int, str]) -> None:
    if isinstance(event, Admitted):
        line.admissions.append(event.step)
        if event.num_cached_tokens:
            line.hits.append(Hit(event.step, event.num_cached_tokens, event.resumed))
    elif isinstance(event, Preempted):
        line.preemptions.append(event)
        line._computed_before = max(line._computed_before, event.num_lost_tokens)
    elif isinstance(event, Finished):
        reason = event.reason.value
        if event.reason is FinishReason.ABORT and aborts.get(event.handle) in ("stop", "error"):
            reason = aborts[event.handle]  # the engine ended it for a stop string or an error of its text
        line.finish = (event.step, reason)
        line.num_output_tokens = event.num_output_tokens


def _enter_rows(by_slot: dict[int, RequestLine], plan: StepPlan, step: ReplayedStep) -> StepLine:
    num_decode = num_prefill = num_again_in_step = 0
    rows = zip(plan.slots.tolist(), plan.starts.tolist(), plan.num_scheduled.tolist(), strict=True)
    for slot, start, num_tokens in rows:
        line = by_slot[slot]
        if start >= line._known:
            line.decodes.append(plan.step)
            num_decode += num_tokens
            continue
        end = start + num_tokens
        num_again = max(0, min(end, line._computed_before) - start)
        is_first = line.admissions[-1] == plan.step
        line.chunks.append(Chunk(plan.step, num_tokens, num_again, is_part=end < line._known or not is_first))
        num_prefill += num_tokens
        num_again_in_step += num_again
    return StepLine(plan.step, num_decode, num_prefill, num_again_in_step, step.num_held, step.num_cached)
