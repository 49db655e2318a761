"""Memory pressure: recompute, swap and auto on KV pools that are too small, on a real model and in virtual time.

Work arrives at once; its *need* is the most KV blocks it holds when there are enough. Pools are shares of that.
*Virtual* runs have the production scheduler and made-up seconds: they are exact, and cover machines that are not here.

    python benchmarks/preemption.py [--model MODEL] [--repeats N] [--out FOLDER] [--quick]

Auto should never be worse than the better of the other two by more than 5 %. Real runs of the three modes take turns,
and each step counts with the fastest of its shape (rows, tokens, copies) in any of them: their work was the same, and
whatever else the machine does only slows it down. Draws preemption.png. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from engine_work import Tokens, make_work
from preemption_plot import draw_pressure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.build import LoadedModel, build_engine, load_model
from headway.config import CacheConfig, EngineOptions, SamplingParams, SchedulerConfig
from headway.engine.engine import Engine
from headway.sim.run import SimReport, percentile, simulate
from headway.sim.timed import LatencyModel
from headway.sim.workload import Arrival, LogNormal, make_workload

MODES = ("recompute", "swap", "auto")
SPACES = ("no swap space", "swap space")
POOLS = (100, 60, 30, 15)
"""Percent of the need."""
BLOCK_SIZE = 16
TOLERANCE = 0.95
TABLE_WIDTH = 120
"""Columns, where standard output is no terminal."""

MACHINES = {
    "2 CPU cores, 135M": LatencyModel(step_s=0.018, token_s=1e-3, kv_token_s=2e-7, copy_s=4e-4, block_copy_s=2.5e-4),
    "GPU, 8B": LatencyModel(step_s=0.006, token_s=3e-5, kv_token_s=4e-8, copy_s=5e-5, block_copy_s=8e-5),
    "GPU, 8B, slow bus": LatencyModel(step_s=0.006, token_s=3e-5, kv_token_s=4e-8, copy_s=1e-3, block_copy_s=1e-3),
}
"""The first is measured with the real part of this benchmark; the others are orders of magnitude: 33,000 prompt tokens
per second, blocks of 2 MiB over 25 or 2 GB/s."""
KNOBS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "reservation nothing": {"reservation": "nothing"},
    "reservation all": {"reservation": "all"},
    "reservation predicted": {"reservation": "predicted"},
    "watermark 0.1": {"watermark": 0.1},
    "victim cheapest": {"victim": "cheapest"},
    "max_overtakes 8": {"max_overtakes": 8},
    "policy shortest": {"scheduling_policy": "shortest"},
}
"""What else may be turned when memory is short; compared on a pool of 30 % in virtual time."""
SIM_BLOCK_BYTES = {"2 CPU cores, 135M": 737_280, "GPU, 8B": 2 << 20, "GPU, 8B, slow bus": 2 << 20}


@dataclass(frozen=True)
class Outcome:
    """One run: a pool and a mode.

    Attributes:
        throughput_tok_s: output tokens by time.
        p50_s, p99_s: latency from arrival to the last token.
        recomputed_tokens: computed a second time, for nothing.
        swap_bytes: copied out and back.
        preemptions: by kind.
    """

    throughput_tok_s: float
    p50_s: float
    p99_s: float
    recomputed_tokens: int
    swap_bytes: int
    preemptions: dict[str, int]


@dataclass
class Outcomes:
    """All runs on one machine.

    Attributes:
        pools: pool -> mode -> outcome.
        auto_share: pool -> throughput of auto by that of the better pure mode.
    """

    pools: dict[int, dict[str, Outcome]] = field(default_factory=dict)
    auto_share: dict[int, float] = field(default_factory=dict)

    def add(self, pool: int, modes: dict[str, Outcome]) -> None:
        """Take in the runs of one pool."""
        better = max(modes[mode].throughput_tok_s for mode in MODES[:2])
        self.pools[pool], self.auto_share[pool] = modes, modes["auto"].throughput_tok_s / better


# --- virtual time ----------------------------------------------------------------------------------------------


def virtual_work(count: int) -> list[Arrival]:
    """Prompts and outputs as long as those of conversations, all at once."""
    return make_workload(np.zeros(count), LogNormal(300, 0.8, 1500), LogNormal(150, 0.7, 600), seed=11)


class VirtualBench:
    """One made-up machine with the work for it."""

    def __init__(self, machine: str, count: int) -> None:
        self._machine = machine
        self._work = virtual_work(count)
        self._need = self._simulate(48 * 132, 0).peak_blocks

    def _simulate(self, num_blocks: int, num_host_blocks: int, **options: Any) -> SimReport:
        config = SchedulerConfig(max_num_seqs=48, max_num_batched_tokens=512, max_model_len=2112, **options)
        cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=max(num_blocks, 132), num_host_blocks=num_host_blocks)
        return simulate(self._work, config, cache, MACHINES[self._machine])

    def run(self, pool: int, *, swap_space: bool = True, **options: Any) -> Outcome:
        """One run on a share of the need, with as much swap space as anybody could want or none."""
        report = self._simulate(self._need * pool // 100, self._need if swap_space else 0, **options)
        num_copied = report.swapped_out_blocks + report.swapped_in_blocks
        return Outcome(
            report.throughput_tok_s,
            percentile(report.e2e_s, 50),
            percentile(report.e2e_s, 99),
            report.recomputed_tokens,
            num_copied * SIM_BLOCK_BYTES[self._machine],
            report.preemptions,
        )

    def modes(self) -> Outcomes:
        """All pools and modes."""
        outcomes = Outcomes()
        for pool in POOLS:
            modes = {mode: self.run(pool, swap_space=mode != "recompute", preemption_mode=mode) for mode in MODES}
            outcomes.add(pool, modes)
        return outcomes

    def knobs(self) -> dict[str, dict[str, Outcome]]:
        """Every knob, without and with swap space."""
        return {
            name: {space: self.run(30, swap_space=space == "swap space", **options) for space in SPACES}
            for name, options in KNOBS.items()
        }


# --- a real model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealWork:
    """Prompts that all arrive at once, and outputs per prompt."""

    prompts: list[Tokens]
    num_outputs: int

    @property
    def need(self) -> int:
        """Blocks that all of them hold at their ends."""
        return sum(-(-(len(prompt) + self.num_outputs) // BLOCK_SIZE) for prompt in self.prompts)

    @property
    def largest(self) -> int:
        """Blocks of the longest, and one that a resumed request may want."""
        return -(-(max(map(len, self.prompts)) + self.num_outputs) // BLOCK_SIZE) + 1


def open_engine(loaded: LoadedModel, num_blocks: int, mode: str, num_requests: int) -> Engine:
    """An engine of this size; its swap space holds more than anybody needs."""
    options = EngineOptions(
        model=loaded.options.model,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=num_requests,
        max_num_batched_tokens=256,
        preemption_mode=mode,
        swap_space_gib=0.0 if mode == "recompute" else 0.25,
    )
    return build_engine(options, loaded=loaded)


def make_real_work(loaded: LoadedModel, quick: bool) -> RealWork:
    """Cut from the prompts of ``engine.py``."""
    main = make_work(partial(loaded.tokenizer.encode, add_special_tokens=False)).main
    count, outputs = (6, 16) if quick else (12, 48)
    return RealWork([prompt[: 32 + 6 * (place % 16)] for place, prompt in enumerate(main[:count])], outputs)


def run_real(loaded: LoadedModel, work: RealWork, repeats: int) -> Outcomes:
    """All pools and modes, the modes taking turns."""
    turns: dict[tuple[int, str], list[Turn]] = {(pool, mode): [] for pool in POOLS for mode in MODES}
    for pool in POOLS:
        num_blocks = max(work.need * pool // 100, work.largest)
        engines = {mode: open_engine(loaded, num_blocks, mode, len(work.prompts)) for mode in MODES}
        # The first turn warms up: memory is touched for the first time, and auto has not measured anything.
        for number in range(repeats + 1):
            for mode, engine in engines.items():
                turn = run_turn(engine, work, number)
                turns[pool, mode] += [turn] if number else []
    step_s = fastest_steps(turn for done in turns.values() for turn in done)
    outcomes = Outcomes()
    for pool in POOLS:
        outcomes.add(pool, {mode: undisturbed(turns[pool, mode][-1], step_s, work) for mode in MODES})
    return outcomes


Shape = tuple[int, ...]
"""Rows, tokens, blocks copied out and back of a step."""


@dataclass
class Turn:
    """One run, step by step.

    Attributes:
        shapes: of each step.
        seconds: what each step took.
        ends: per request, the step that ended it, from 0.
        recomputed_tokens, swap_bytes, preemptions: as in ``Outcome``.
    """

    shapes: list[Shape] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    recomputed_tokens: int = 0
    swap_bytes: int = 0
    preemptions: dict[str, int] = field(default_factory=lambda: {"recompute": 0, "swap": 0})


def run_turn(engine: Engine, work: RealWork, number: int) -> Turn:
    """One run of the work, which shares no prefixes with those of other numbers."""
    before, turn = engine.metrics.counters.copy(), Turn()
    sampling = SamplingParams(max_tokens=work.num_outputs, temperature=0.0, ignore_eos=True)
    for place, prompt in enumerate(work.prompts):
        engine.add(engine.prepare(prompt, sampling, request_id=f"{number}-{place}", cache_salt=str(number)))
    while engine.has_work:
        begin = time.perf_counter()
        report = engine.advance()
        turn.seconds.append(time.perf_counter() - begin)
        plan = report.plan
        turn.shapes.append(
            () if plan is None else (plan.num_rows, plan.num_tokens, len(plan.swap_out), len(plan.swap_in))
        )
        turn.ends += [len(turn.seconds) - 1 for update in report.updates if update.output is not None]
    after = engine.metrics.counters
    turn.recomputed_tokens = after.recomputed_tokens - before.recomputed_tokens
    copied = after.swapped_out_blocks + after.swapped_in_blocks - before.swapped_out_blocks - before.swapped_in_blocks
    turn.swap_bytes = copied * engine.kv_block_bytes
    for (kind, cause), count in after.preemptions.items():
        turn.preemptions[kind] += count - before.preemptions[kind, cause]
    return turn


def fastest_steps(turns: Iterable[Turn]) -> dict[Shape, float]:
    """Seconds of the fastest step of each shape."""
    fastest: dict[Shape, float] = {}
    for turn in turns:
        for shape, seconds in zip(turn.shapes, turn.seconds, strict=True):
            fastest[shape] = min(seconds, fastest.get(shape, seconds))
    return fastest


def undisturbed(turn: Turn, step_s: Mapping[Shape, float], work: RealWork) -> Outcome:
    """A turn as it would have been on an idle machine, with these seconds per step."""
    at_s = np.cumsum([step_s[shape] for shape in turn.shapes])
    latencies = at_s[turn.ends]
    return Outcome(
        len(work.prompts) * work.num_outputs / float(at_s[-1]),
        percentile(latencies, 50),
        percentile(latencies, 99),
        turn.recomputed_tokens,
        turn.swap_bytes,
        turn.preemptions,
    )


# --- report ----------------------------------------------------------------------------------------------------


def show(console: Console, title: str, outcomes: Outcomes) -> None:
    """One table: a line per pool and mode."""
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in (
        "pool %",
        "mode",
        "tokens/s",
        "p50 s",
        "p99 s",
        "recomputed",
        "copied MiB",
        "preempted",
        "auto / best",
    ):
        table.add_column(heading, justify="left" if heading == "mode" else "right", no_wrap=True)
    for pool, modes in outcomes.pools.items():
        share = outcomes.auto_share[pool]
        for mode, one in modes.items():
            verdict = f"[{'green' if share >= TOLERANCE else 'red'}]{share:.3f}[/]" if mode == "auto" else ""
            table.add_row(
                str(pool) if mode == MODES[0] else "",
                mode,
                f"{one.throughput_tok_s:,.1f}",
                f"{one.p50_s:.2f}",
                f"{one.p99_s:.2f}",
                f"{one.recomputed_tokens:,}",
                f"{one.swap_bytes / 2**20:,.1f}",
                " + ".join(f"{count} {kind}" for kind, count in one.preemptions.items() if count) or "-",
                verdict,
                end_section=mode == MODES[-1],
            )
    console.print(table)


def show_knobs(console: Console, knobs: Mapping[str, Mapping[str, Outcome]]) -> None:
    """A line per knob, without and with swap space."""
    table = Table(title=f"virtual: {next(iter(MACHINES))}, pool 30 %, other knobs", box=SIMPLE_HEAD)
    for heading in ("knob", "", "tokens/s", "p50 s", "p99 s", "preempted", "recomputed"):
        table.add_column(heading, justify="left" if heading in ("knob", "") else "right", no_wrap=True)
    for name, spaces in knobs.items():
        for space, one in spaces.items():
            table.add_row(
                name if space == SPACES[0] else "",
                space,
                f"{one.throughput_tok_s:,.1f}",
                f"{one.p50_s:.1f}",
                f"{one.p99_s:.1f}",
                str(sum(one.preemptions.values())),
                f"{one.recomputed_tokens:,}",
                end_section=space == SPACES[1],
            )
    console.print(table)


def figures(outcomes: Mapping[Any, Mapping[str, Outcome]], name: str, digits: int = 1) -> dict[str, dict[str, float]]:
    """One figure of all outcomes, keyed as they are."""
    return {
        str(key): {inner: round(getattr(one, name), digits) for inner, one in modes.items()}
        for key, modes in outcomes.items()
    }


def shares(outcomes: Outcomes) -> dict[str, float]:
    """Auto's shares, keyed by pool."""
    return {str(pool): round(share, 3) for pool, share in outcomes.auto_share.items()}


def summary(model: str, real: Outcomes, virtual: Mapping[str, Outcomes]) -> dict[str, Any]:
    """The JSON object."""
    names = ("throughput_tok_s", "p50_s", "p99_s", "recomputed_tokens", "swap_bytes")
    line: dict[str, Any] = {"model": model} | {name: figures(real.pools, name, 2) for name in names}
    line["auto_to_best"] = shares(real)
    line["virtual"] = {
        machine: {name: figures(outcomes.pools, name) for name in ("throughput_tok_s", "p99_s", "recomputed_tokens")}
        | {"auto_to_best": shares(outcomes)}
        for machine, outcomes in virtual.items()
    }
    return line


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="what LLM(model=...) takes")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count, per pool and mode (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for preemption.png (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="less work: under a minute")
    return parser.parse_args()


def main() -> None:
    """Run, show, draw, and print the JSON line."""
    arguments = parse_arguments()
    console = Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)
    benches = {machine: VirtualBench(machine, 40 if arguments.quick else 200) for machine in MACHINES}
    virtual = {machine: bench.modes() for machine, bench in benches.items()}
    knobs = next(iter(benches.values())).knobs()
    loaded = load_model(EngineOptions(model=arguments.model))
    repeats = 1 if arguments.quick else arguments.repeats
    real = run_real(loaded, make_real_work(loaded, arguments.quick), repeats)
    for machine, outcomes in virtual.items():
        show(console, f"virtual: {machine}", outcomes)
    show(console, f"real: {arguments.model}" + (" (shortened)" if arguments.quick else ""), real)
    show_knobs(console, knobs)
    lowest = min(share for outcomes in (real, *virtual.values()) for share in outcomes.auto_share.values())
    console.print(f"auto reaches at least {lowest:.1%} of the better pure mode everywhere")
    target = draw_pressure(
        {f"real: {arguments.model}": real.pools, **{name: each.pools for name, each in virtual.items()}}, arguments.out
    )
    console.print(f"drawn: {target}")
    print(json.dumps(summary(arguments.model, real, virtual) | {"knobs_tok_s": figures(knobs, "throughput_tok_s")}))


if __name__ == "__main__":
    main()
