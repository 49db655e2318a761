"""The whole engine on a model, beside what other engines reached on the same work.

Four measurements: *single*, one request alone; *ttft*, the first token of a 2,000-token prompt; *main*, 64 prompts at
once, 17,563 tokens, 128 outputs each; *shared*, 64 prompts with a common beginning of 1,024 tokens, 32 outputs each.

    python benchmarks/engine.py --model MODEL [--workload FILE] [--only single,main] [--quick]

Without ``--workload`` the prompts are made from Python's help texts, with the same lengths. The peers' figures
(SmolLM2-135M, two cores of an AMD Zen 3, November 2026) compare only with the same model on such a machine. The last
line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_work import EngineWork, Tokens, make_work, read_work
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway import LLM
from headway.config import SamplingParams
from headway.engine.llm import OfflineLLM
from headway.engine.outputs import RequestOutput

MEASUREMENTS = ("single", "ttft", "main", "shared")
FIGURES = {
    "single_tok_s": "single tokens/s",
    "ttft2000_ms": "first of 2,000 ms",
    "main_tok_s": "main tokens/s",
    "shared_tok_s": "shared tokens/s",
    "peak_rss_mib": "peak memory MiB",
}
BARS = {"single_tok_s": 48.0, "ttft2000_ms": 4000.0, "main_tok_s": 160.0, "shared_tok_s": 150.0}
LESS_IS_BETTER = ("ttft2000_ms", "peak_rss_mib")
PEERS: dict[str, tuple[float | None, ...]] = {
    "vLLM 0.32 fp32": (23.7, 5104, 125.4, 122.2, 7210),
    "vLLM 0.32 W8A8": (10.7, 3876, 133.5, 119.7, 7068),
    "llama.cpp Q8_0": (85.5, 5959, 98.2, 27.5, 1868),
    "llama.cpp Q4_0": (140.6, 4709, 114.0, None, 2690),
    "OpenVINO int8": (52.0, 6980, 151.8, 16.5, 1535),
    "transformers": (16.4, 4640, None, None, 1022),
    "transformers CB": (14.0, None, 17.42, 5.9, 5317),
}
"""Engine and weights -> figures in the order of ``FIGURES``."""


@dataclass
class Measured:
    """One measurement.

    Attributes:
        seconds: wall time from the call to the last token.
        num_outputs: tokens delivered.
        outputs: the requests.
        phases: phase of a step -> (steps, seconds in all).
    """

    seconds: float
    num_outputs: int
    outputs: Sequence[RequestOutput]
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens by wall time."""
        return self.num_outputs / self.seconds


class EngineBench:
    """Runs prompts through one ``LLM`` and keeps the figures."""

    def __init__(self, llm: OfflineLLM, work: EngineWork) -> None:
        self._llm = llm
        self._work = work
        self.measured: dict[str, Measured] = {}

    def run(self, prompts: list[Tokens], max_tokens: int) -> Measured:
        """Generate greedily, ignoring end-of-text, and take the time."""
        before = self._phases()
        begin = time.perf_counter()
        outputs = self._llm.generate(prompts, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
        seconds = time.perf_counter() - begin
        after = self._phases()
        spent = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
        num_outputs = sum(len(output.outputs[0].token_ids) for output in outputs)
        if num_outputs != len(prompts) * max_tokens:
            raise RuntimeError(f"{num_outputs} tokens came for {len(prompts)} prompts of {max_tokens} outputs")
        return Measured(seconds, num_outputs, outputs, spent)

    def _phases(self) -> dict[str, tuple[int, float]]:
        phases = self._llm.engine.metrics.histograms.phase_s
        return {name: (histogram.count, histogram.sum) for name, histogram in phases.items()}

    def single(self) -> float:
        """Output tokens per second of one request alone, its prompt included; the median of three."""
        runs = [self.run([turn(self._work.single, place)], self._work.single_outputs) for place in range(3)]
        self.measured["single"] = sorted(runs, key=lambda run: run.seconds)[1]
        return self.measured["single"].tokens_per_second

    def ttft(self) -> float:
        """Milliseconds to the first token of a long prompt; the median of three."""
        runs = [self.run([turn(self._work.long, place)], 1) for place in range(3)]
        self.measured["ttft"] = sorted(runs, key=lambda run: run.seconds)[1]
        return 1e3 * statistics.median(first_token_s(run.outputs[0]) for run in runs)

    def main(self) -> float:
        """Output tokens per second of the main work."""
        self.measured["main"] = self.run(self._work.main, self._work.main_outputs)
        return self.measured["main"].tokens_per_second

    def shared(self) -> float:
        """Output tokens per second of the prompts with a common beginning."""
        self.measured["shared"] = self.run(self._work.shared, self._work.shared_outputs)
        return self.measured["shared"].tokens_per_second


def turn(prompt: Tokens, place: int) -> Tokens:
    """The prompt turned by some tokens: as long, and without a block in common with the others."""
    return prompt[place:] + prompt[:place]


def first_token_s(output: RequestOutput) -> float:
    """Seconds from arrival to the first token."""
    if output.metrics is None or output.metrics.ttft_s is None:
        raise RuntimeError(f"request {output.request_id} has no first token: {output.error}")
    return output.metrics.ttft_s


def encoder(llm: OfflineLLM) -> Callable[[str], Sequence[int]]:
    """The model's tokenizer, without special tokens."""
    tokenizer = llm.engine.tokenizer
    if tokenizer is None:
        raise SystemExit("this model has no tokenizer to make prompts with; give it a --workload")
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def peak_rss_mib() -> float:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show_figures(console: Console, figures: dict[str, float | None], quick: bool) -> None:
    """Ours beside the bars and the peers."""
    table = Table(title="engine" + (" (shortened work: do not compare)" if quick else ""), box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for label in FIGURES.values():
        table.add_column(label, justify="right")
    table.add_row("Headway", *(verdict(key, figures[key], BARS.get(key), quick) for key in FIGURES), end_section=True)
    table.add_row("bar", *(number(BARS.get(key)) for key in FIGURES), end_section=True)
    for name, peer in PEERS.items():
        table.add_row(name, *map(number, peer))
    console.print(table)


def verdict(key: str, value: float | None, bar: float | None, quick: bool) -> str:
    """The figure, green if it clears the bar, red if not."""
    if value is None or bar is None or quick:
        return number(value)
    cleared = value <= bar if key in LESS_IS_BETTER else value >= bar
    return f"[{'green' if cleared else 'red'}]{number(value)}[/]"


def number(value: float | None) -> str:
    """As it is read best."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def show_phases(console: Console, measured: dict[str, Measured]) -> None:
    """Where a step's time went. The rest is taking in prompts, and whatever the loop does between the phases."""
    table = Table(title="milliseconds per step", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    steps, rest = {}, {}
    for name, run in measured.items():
        table.add_column(name, justify="right")
        steps[name] = max(count for count, _ in run.phases.values())
        rest[name] = run.seconds - sum(seconds for _, seconds in run.phases.values())
    for phase in next(iter(measured.values())).phases:
        table.add_row(phase, *(f"{1e3 * run.phases[phase][1] / steps[name]:.2f}" for name, run in measured.items()))
    table.add_row("rest", *(f"{1e3 * rest[name] / steps[name]:.2f}" for name in measured), end_section=True)
    table.add_row("steps", *map(str, steps.values()))
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="what LLM(model=...) takes")
    parser.add_argument("--workload", type=Path, help="a workload file instead of prompts made here")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="some of: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the work")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    unknown = [name for name in arguments.only if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; choose among {', '.join(MEASUREMENTS)}")
    return arguments


def main() -> None:
    """Measure, show, and print the JSON line."""
    arguments = parse_arguments()
    console = Console()
    llm = LLM(model=arguments.model, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=2304, num_blocks=1792)
    work = read_work(arguments.workload) if arguments.workload else make_work(encoder(llm))
    if arguments.quick:
        work = work.shortened()
    console.print(f"model {arguments.model}, prompts: {work.source}")
    bench = EngineBench(llm, work)
    bench.run(work.warm, 8)
    measure: dict[str, tuple[str, Callable[[], float]]] = {
        "single": ("single_tok_s", bench.single),
        "ttft": ("ttft2000_ms", bench.ttft),
        "main": ("main_tok_s", bench.main),
        "shared": ("shared_tok_s", bench.shared),
    }
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    for name in arguments.only:
        key, run = measure[name]
        figures[key] = run()
    figures["peak_rss_mib"] = peak_rss_mib()
    show_figures(console, figures, arguments.quick)
    show_phases(console, bench.measured)
    line: dict[str, Any] = {key: value if value is None else round(value, 1) for key, value in figures.items()}
    print(json.dumps(line | {"model": str(arguments.model), "prompts": work.source}))


if __name__ == "__main__":
    main()
