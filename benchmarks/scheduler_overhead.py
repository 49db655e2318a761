"""What the scheduler itself costs: microseconds of ``schedule`` + ``update`` per step, no model behind it.

Three workloads (``scheduler_work.py``): *steady*, N requests that all decode; *churn*, arrivals, prefix hits, chunks,
finishes and preemptions in every few steps; *two groups*, steady with two block tables per request. With
``--vllm-python PATH`` the same work is done by vLLM's scheduler in that interpreter, and the ratio is shown.

    python benchmarks/scheduler_overhead.py [--quick] [--vllm-python PATH]

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scheduler_work import (
    BLOCK_SIZE,
    CHURN_LIMITS,
    MAX_MODEL_LEN,
    Limits,
    StepCount,
    Work,
    clock,
    made_up_tokens,
    measure_churn,
    measure_steady,
    steady_limits,
)

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.events import Admitted, Event, Preempted
from headway.core.plan import Int32, StepPlan, StepResult
from headway.core.request import Request
from headway.core.scheduler import Scheduler

RUNNING = (64, 256, 1024, 4096)
TWO_GROUPS_RUNNING = 1024
VLLM_LARGEST = 1024
"""vLLM is measured up to here: beyond, a run takes minutes."""


class HeadwayBench:
    """Headway's scheduler, driven as the engine's loop does."""

    def __init__(self, limits: Limits) -> None:
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=MAX_MODEL_LEN,
            ),
            CacheConfig(block_size=BLOCK_SIZE, num_blocks=limits.num_blocks, num_groups=limits.num_groups),
        )
        self._now = 0.0
        self._totals = {"preemptions": 0, "cached_tokens": 0}

    def prepare(self, work: Work) -> tuple[str, Int32, SamplingParams]:
        """Parts of a request; the request itself is made inside the timed part, where its prompt is hashed."""
        return work.name, work.prompt, SamplingParams(max_tokens=work.max_tokens, ignore_eos=True)

    def step(self, arrivals: list[tuple[str, Int32, SamplingParams]]) -> StepCount:
        """One step; making up the model's result is not timed."""
        self._now += 1.0
        begin = clock()
        for name, prompt, sampling in arrivals:
            self._scheduler.add(Request(name, prompt, sampling), self._now)
        plan = self._scheduler.schedule(self._now)
        seconds = clock() - begin
        result = made_up_result(plan)
        begin = clock()
        output = self._scheduler.update(plan, result, self._now)
        events = self._scheduler.take_events()
        seconds += clock() - begin
        self._count(events)
        only_decodes = plan.num_tokens == plan.num_rows and bool(plan.samples.all())
        return StepCount(seconds, len(output.finished), plan.num_rows, plan.num_tokens, only_decodes)

    def _count(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Preempted):
                self._totals["preemptions"] += 1
            elif isinstance(event, Admitted) and not event.resumed:
                self._totals["cached_tokens"] += event.num_cached_tokens

    def counters(self) -> dict[str, int]:
        """Totals since the start."""
        return dict(self._totals)


def made_up_result(plan: StepPlan) -> StepResult:
    """One token for every row that samples."""
    tokens = np.where(plan.samples, made_up_tokens(plan.num_rows, plan.step), -1).astype(np.int32)
    return StepResult(plan.step, tokens[:, None], plan.samples.astype(np.int32))


def measure_headway(num_steps: int, churn_steps: int) -> dict[str, Any]:
    """All three workloads."""
    steady = {}
    for running in RUNNING:
        steady[str(running)] = measure_steady(HeadwayBench(steady_limits(running)), running, num_steps)
    churn = measure_churn(HeadwayBench(CHURN_LIMITS), churn_steps)
    bench = HeadwayBench(steady_limits(TWO_GROUPS_RUNNING, num_groups=2))
    two_groups = measure_steady(bench, TWO_GROUPS_RUNNING, num_steps)
    return {"steady": steady, "churn": churn, "two_groups": two_groups}


def measure_vllm(python: Path, num_steps: int, churn_steps: int) -> dict[str, Any]:
    """The same by vLLM, in a process of its own."""
    running = [number for number in RUNNING if number <= VLLM_LARGEST]
    command = [str(python), str(Path(__file__).with_name("vllm_scheduler_probe.py"))]
    command += ["--running", ",".join(map(str, running)), "--steps", str(num_steps)]
    command += ["--churn-steps", str(churn_steps), "--two-groups", str(TWO_GROUPS_RUNNING)]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"the vLLM probe failed:\n{answer.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def show(headway: dict[str, Any], vllm: dict[str, Any] | None) -> None:
    """The figures as a table."""
    table = Table(title="scheduler: microseconds per step", box=SIMPLE_HEAD)
    for column in ("workload", "median", "p90", "mean", *(("vLLM median", "ratio") if vllm else ())):
        table.add_column(column, justify="left" if column == "workload" else "right")
    rows = [(f"steady, {running} running", ("steady", running)) for running in headway["steady"]]
    rows += [("churn, 256 slots", ("churn",)), (f"two groups, {TWO_GROUPS_RUNNING} running", ("two_groups",))]
    for name, path in rows:
        figures = dig(headway, path) or {}
        cells = [name, *(f"{figures[key]:,.0f}" for key in ("median_us", "p90_us", "mean_us"))]
        if vllm:
            peer = dig(vllm, path)
            cells += (
                [f"{peer['median_us']:,.0f}", f"{peer['median_us'] / figures['median_us']:.1f}"] if peer else ["-"] * 2
            )
        table.add_row(*cells)
    console = Console()
    console.print(table)
    for name, figures in (("Headway", headway["churn"]), ("vLLM", vllm["churn"] if vllm else None)):
        if figures:
            console.print(
                f"churn, {name}: {figures['num_steps']} steps, {figures['arrivals']} arrivals,"
                f" {figures['finished']} finished, {figures['preemptions']} preemptions,"
                f" {figures['cached_tokens']:,} prompt tokens from the prefix cache,"
                f" {figures['mean_rows']} rows and {figures['mean_tokens']} tokens a step"
            )


def dig(found: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """The figures at ``path``, or ``None``."""
    for key in path:
        found = found.get(key, {})
    return found or None


def as_json(headway: dict[str, Any], vllm: dict[str, Any] | None) -> dict[str, Any]:
    """The last line."""
    line: dict[str, Any] = {
        "steady_us": {running: figures["median_us"] for running, figures in headway["steady"].items()},
        "steady_p90_us": {running: figures["p90_us"] for running, figures in headway["steady"].items()},
        "churn_us": headway["churn"]["median_us"],
        "churn_p90_us": headway["churn"]["p90_us"],
        "two_groups_us": headway["two_groups"]["median_us"],
    }
    if vllm:
        line["vllm_version"] = vllm["version"]
        line["vllm_steady_us"] = {running: figures["median_us"] for running, figures in vllm["steady"].items()}
        line["vllm_churn_us"] = vllm["churn"]["median_us"]
        line["vllm_two_groups_us"] = vllm["two_groups"]["median_us"]
        line["ratio"] = {
            running: round(peer / line["steady_us"][running], 1) for running, peer in line["vllm_steady_us"].items()
        }
    return line


def main() -> None:
    """Measure, show, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps: some seconds")
    parser.add_argument("--vllm-python", type=Path, help="an interpreter with vLLM 0.32 or 0.33")
    arguments = parser.parse_args()
    num_steps, churn_steps = (80, 200) if arguments.quick else (400, 1000)
    headway = measure_headway(num_steps, churn_steps)
    vllm = measure_vllm(arguments.vllm_python, num_steps, churn_steps) if arguments.vllm_python else None
    show(headway, vllm)
    print(json.dumps(as_json(headway, vllm)))


if __name__ == "__main__":
    sys.exit(main())
