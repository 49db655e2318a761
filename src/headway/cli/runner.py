"""Runs jobs on an engine and makes records of what came out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.cli.fetch import fetch_progress
from headway.cli.prompts import Job
from headway.config import EngineOptions
from headway.core.request import RequestRefused
from headway.engine.engine import Engine, Prepared
from headway.engine.llm import refused_output
from headway.engine.outputs import RequestOutput, RequestUpdate
from headway.engine.progress import GenerationProgress

Ended = tuple[int, RequestOutput]


def open_engine(options: EngineOptions) -> Engine:
    """Load a model, fetching it first if need be, with progress on standard error."""
    from headway.build import build_engine

    with fetch_progress() as report:
        return build_engine(options, progress=report)


@contextmanager
def generation_progress(engine: Engine, num_jobs: int) -> Iterator[Callable[[RequestUpdate], None] | None]:
    """What to call with every update to show progress on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with GenerationProgress(engine.scheduler, num_jobs) as progress:
        yield progress.update


def run_jobs(
    engine: Engine, jobs: Sequence[Job], on_update: Callable[[RequestUpdate], None] | None = None
) -> Iterator[Ended]:
    """Run all jobs at once.

    Args:
        engine: with nothing to do, and used by nobody else meanwhile.
        jobs: added in this order.
        on_update: called with everything delivered, refusals included.

    Yields:
        Index and output of each job, as they end. A job that can never be served has finish reason "refused".
    """
    index_of: dict[int, int] = {}
    for index, job in enumerate(jobs):
        try:
            index_of[engine.add(_prepare(engine, job))] = index
        except RequestRefused as refusal:
            output = refused_output(job.request_id, refusal)
            if on_update is not None:
                on_update(RequestUpdate(job.request_id, "", (), None, output))
            yield index, output
    while engine.has_work:
        for update in engine.step():
            if on_update is not None:
                on_update(update)
            if update.output is not None:
                yield index_of[update.handle], update.output


def in_order(ended: Iterable[Ended]) -> Iterator[Ended]:
    """The same by rising index, each as soon as all before it are there."""
    early: dict[int, RequestOutput] = {}
    due = 0
    for index, output in ended:
        early[index] = output
        while due in early:
            yield due, early.pop(due)
            due += 1


def _prepare(engine: Engine, job: Job) -> Prepared:
    sampling = job.sampling_with(engine.sampling_defaults)
    if job.messages is not None:
        return engine.prepare_chat(job.messages, sampling, request_id=job.request_id, **job.service)
    prompt = job.text if job.text is not None else job.token_ids or ()
    return engine.prepare(prompt, sampling, request_id=job.request_id, **job.service)


def record_of(output: RequestOutput) -> dict[str, Any]:
    """A finished request as one JSON object; what was not asked for or does not apply is left out."""
    completion = output.outputs[0]
    record: dict[str, Any] = {
        "request_id": output.request_id,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "metrics": _plain(output.metrics),
        "error": _plain(output.error),
        "logprobs": _plain(completion.logprobs),
        "prompt": output.prompt,
        "prompt_logprobs": _plain(output.prompt_logprobs),
    }
    return {name: value for name, value in record.items() if value is not None}


def _plain(value: Any) -> Any:
    """Dataclasses and tuples as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
