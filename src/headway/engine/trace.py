"""The step trace: everything that decided, as JSON lines, so that a replay can make every decision again.

docs/trace.md defines the format. A trace holds times only where they decide something, or if asked for: otherwise two
runs of the same workload with the same seed write the same bytes. It does hold the prompts and outputs, as token ids.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Finished
from headway.core.plan import StepPlan, StepResult
from headway.core.policies import make_policy
from headway.core.request import Request
from headway.engine.trace_records import plan_to_json, request_to_json, result_to_json

FORMAT = "headway-trace"
VERSION = 3

KINDS = ("header", "add", "abort", "plan", "result", "finish", "t")
"""Kinds of lines; the key ``kind`` of every line is one of these."""


class TraceError(ValueError):
    """A trace cannot be read.

    Attributes:
        line: number of the offending line, from 1.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"trace line {line}: {message}")
        self.line = line


@dataclasses.dataclass(frozen=True)
class TraceHeader:
    """The first line of a trace.

    Attributes:
        headway: version of Headway that wrote it.
        scheduler, cache: options of the scheduler.
        run: whatever else the writer found worth saying (model, seed, ...).
    """

    headway: str
    scheduler: SchedulerConfig
    cache: CacheConfig
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_Line = dict[str, Any] | Callable[[], dict[str, Any]]
"""A line, or what makes it when it is written."""


class TraceWriter:
    """Writes a trace. Lines are kept and written in bulk by :meth:`flush`, away from the step.

    Args:
        file: a path, or an open text file, which is then not closed.
        header: the first line.
        timings: whether to write lines of kind ``t``.
        flush_every: lines to keep at most.
    """

    def __init__(
        self, file: str | Path | TextIO, header: TraceHeader, *, timings: bool = False, flush_every: int = 1024
    ) -> None:
        self._owns_file = isinstance(file, (str, Path))
        self._file = Path(file).open("w", encoding="utf-8", newline="\n") if isinstance(file, (str, Path)) else file  # noqa: SIM115
        self.timings = timings
        self._flush_every = flush_every
        policy = make_policy(header.scheduler)
        self._clock_decides = policy.uses_clock
        self._times_decide = (
            header.scheduler.victim == "cheapest"
            or policy.ranks_victims
            or (header.scheduler.preemption_mode == "auto" and header.cache.num_host_blocks > 0)
        )
        self._lines: list[_Line] = [
            {
                "kind": "header",
                "format": FORMAT,
                "version": VERSION,
                "headway": header.headway,
                "scheduler": dataclasses.asdict(header.scheduler),
                "cache": dataclasses.asdict(header.cache),
                "run": dict(header.run),
            }
        ]

    def add(self, request: Request) -> None:
        """A request entered the scheduler."""
        self._put(request_to_json(request, with_arrival=self._clock_decides))

    def abort(self, handle: int, why: str) -> None:
        """A live request was aborted in the scheduler; ``why`` is "client", "stop" or "error"."""
        self._put({"kind": "abort", "handle": handle, "why": why})

    def plan(self, plan: StepPlan, now: float) -> None:
        """``schedule(now)`` made this plan, which may have no rows."""
        self._put(partial(plan_to_json, plan, now if self._clock_decides else None))

    def result(self, result: StepResult) -> None:
        """``update`` is about to take in this result."""
        self._put(partial(result_to_json, result, with_times=self._times_decide))

    def finish(self, event: Finished) -> None:
        """A request ended, as the scheduler sees it."""
        self._put(
            {
                "kind": "finish",
                "handle": event.handle,
                "request_id": event.request_id,
                "step": event.step,
                "reason": event.reason.value,
                "num_output_tokens": event.num_output_tokens,
                "num_cached_tokens": event.num_cached_tokens,
                "num_preemptions": event.num_preemptions,
                "stop_token_id": event.stop_token_id,
                "message": event.message,
            }
        )

    def times(self, step: int, now: float, seconds: Mapping[str, float]) -> None:
        """When a step ended and how long its parts took; written only with ``timings``."""
        if self.timings:
            self._put({"kind": "t", "step": step, "now": now, **seconds})

    def flush(self) -> None:
        """Write what is kept."""
        lines, self._lines = self._lines, []
        self._file.writelines(_dump(line) + "\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Write what is kept and close the file; more calls do nothing."""
        if self._file.closed:
            return
        self.flush()
        if self._owns_file:
            self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, line: _Line) -> None:
        self._lines.append(line)
        if len(self._lines) >= self._flush_every:
            self.flush()


class TraceReader:
    """Reads a trace line by line.

    Args:
        file: a path, or an open text file.

    Raises:
        TraceError: the first line is not the header of a trace of this version.
    """

    def __init__(self, file: str | Path | TextIO) -> None:
        self._lines = self._open(file)
        self._number = 0
        first = next(self._lines, None)
        if first is None:
            raise TraceError(1, "the trace is empty")
        header = self._parse(first)
        if header.get("format") != FORMAT:
            raise TraceError(1, "this is not a Headway trace")
        if header.get("version") != VERSION:
            raise TraceError(1, f"the trace has version {header.get('version')!r}; this reader reads version {VERSION}")
        try:
            self.header = TraceHeader(
                header["headway"],
                SchedulerConfig(**header["scheduler"]),
                CacheConfig(**header["cache"]),
                header["run"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(1, f"the header cannot be used: {error}") from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The lines after the header, as dictionaries with the keys of docs/trace.md.

        Raises:
            TraceError: a line is broken or of an unknown kind.
        """
        for text in self._lines:
            line = self._parse(text)
            if line.get("kind") not in KINDS:
                raise TraceError(self._number, f"unknown kind {line.get('kind')!r}")
            yield line

    def _parse(self, text: str) -> dict[str, Any]:
        self._number += 1
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise TraceError(self._number, f"not JSON ({error.msg}); was the writer cut off?") from error
        if not isinstance(line, dict):
            raise TraceError(self._number, "not a JSON object")
        return line

    @staticmethod
    def _open(file: str | Path | TextIO) -> Iterator[str]:
        if not isinstance(file, (str, Path)):
            yield from file
            return
        with open(file, encoding="utf-8") as opened:
            yield from opened


def _dump(line: _Line) -> str:
    return json.dumps(line if isinstance(line, dict) else line(), separators=(",", ":"))
