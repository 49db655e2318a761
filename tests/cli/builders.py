"""Recorded runs without a model, under memory pressure, with named defaults."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from headway.cli.timeline import Timeline, read_timeline
from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.engine.loop import EngineLoop
from headway.engine.trace import TraceHeader, TraceReader, TraceWriter
from headway.sim.fake import FakeExecutor

Prompts = Mapping[str, Sequence[int]]

SHARED = list(range(100, 116))
PROMPTS: Prompts = {
    "short": [1, 2, 3],
    "long": list(range(200, 240)),
    "first": [*SHARED, 7],
    "second": [*SHARED, 8],
}


def record(
    prompts: Prompts = PROMPTS,
    *,
    max_tokens: int = 12,
    abort_at: Mapping[int, str] | None = None,
    run: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> str:
    """The trace of a run: blocks of 4 tokens, 12 tokens a step, as many blocks as asked for (default 20).

    Args:
        prompts: token ids by request id, all there from the start.
        max_tokens: outputs of each request.
        abort_at: step after which a client aborts a request.
        run: what the header says about the run.
        overrides: options of the scheduler, and ``num_blocks``, ``num_host_blocks`` and ``enable_prefix_caching``.
    """
    cache = CacheConfig(
        block_size=4,
        num_blocks=overrides.pop("num_blocks", 20),
        enable_prefix_caching=overrides.pop("enable_prefix_caching", True),
        num_host_blocks=overrides.pop("num_host_blocks", 0),
    )
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "max_model_len": 64} | overrides
    config = SchedulerConfig(**limits)
    text = io.StringIO()
    writer = TraceWriter(text, TraceHeader("0.0", config, cache, run or {}))
    loop = EngineLoop(
        Scheduler(config, cache), FakeExecutor(block_size=4), lambda: 0.0, trace=writer, isolate_errors=False
    )
    handles = {
        request_id: loop.add(Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
        for request_id, prompt in prompts.items()
    }
    while loop.has_work:
        loop.step()
        if abort_at and loop.scheduler.step in abort_at:
            loop.abort(handles[abort_at[loop.scheduler.step]])
    writer.flush()
    return text.getvalue()


def timeline_of(trace: str) -> Timeline:
    """Fold a trace."""
    return read_timeline(TraceReader(io.StringIO(trace)))
