"""What memory a server and ``LLM`` take: at start, for one short request, for many long ones, and when all have ended.

    python benchmarks/memory.py [--model MODEL] [--only server,offline,pair] [--requests 64] [--prompt-tokens 1000]

Options are the defaults, so the KV memory is what an engine reserves unasked. *pair* starts two servers in the same
second. All figures are resident memory in MiB; the last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from http_client import ServerProcess, post, run_streams, serving
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

MIB = 2**20
PARTS = ("server", "offline", "pair")
SHORT_TOKENS, SHORT_OUTPUTS = 12, 8
SAMPLE_S, REST_S = 0.05, 1.0
STAGES = {
    "start": "after start",
    "short": "after one short request",
    "long": "while the long ones run, at most",
    "ended": "when all have ended",
}

Prompts = list[list[int]]


@dataclass(frozen=True)
class Work:
    """The long requests: how many, and tokens of each."""

    num_requests: int
    num_prompt_tokens: int
    num_outputs: int

    def prompts(self) -> Prompts:
        """Token ids; no two prompts begin alike."""
        return [
            [3 + (101 * number + 7 * place) % 241 for place in range(self.num_prompt_tokens)]
            for number in range(self.num_requests)
        ]


def resident_mib(pid: int) -> float:
    """What a process has now."""
    return ServerProcess(0, pid).rss_bytes / MIB


@contextmanager
def watching(pid: int) -> Iterator[list[float]]:
    """Look again and again until the end of the block; what was seen."""
    seen = [resident_mib(pid)]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_S):
            seen.append(resident_mib(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def stages(pid: int, work: Work, run: Callable[[Prompts, int], None]) -> dict[str, int]:
    """The figures of one engine that has just started in ``pid``.

    Args:
        run: gets prompts and the number of outputs, and returns when all have ended.
    """
    found = {"start": resident_mib(pid)}
    run([list(range(3, 3 + SHORT_TOKENS))], SHORT_OUTPUTS)
    found["short"] = resident_mib(pid)
    with watching(pid) as seen:
        run(work.prompts(), work.num_outputs)
    found["long"] = max(seen)
    time.sleep(REST_S)
    found["ended"] = resident_mib(pid)
    return {stage: round(mib) for stage, mib in found.items()}


def complete(server: ServerProcess, prompts: Prompts, num_outputs: int) -> None:
    """Have a server answer them all at once."""
    body = {"max_tokens": num_outputs, "temperature": 0, "ignore_eos": True, "stream": True}
    streams = asyncio.run(
        run_streams(server.port, [post("/v1/completions", {"prompt": prompt, **body}) for prompt in prompts])
    )
    if not all(stream.ended for stream in streams):
        raise SystemExit(f"a call failed: {next(each.body[:300] for each in streams if not each.ended)!r}")


def server_figures(model: str, work: Work) -> dict[str, int]:
    """Of ``headway serve``."""
    with serving([model]) as server:
        return stages(server.pid, work, lambda *asked: complete(server, *asked))


def offline_figures(model: str, work: Work) -> dict[str, int]:
    """Of ``LLM`` in this process."""
    from headway import LLM, SamplingParams

    llm = LLM(model)

    def run(prompts: Prompts, num_outputs: int) -> None:
        llm.generate(prompts, SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True))

    return stages(os.getpid(), work, run)


def apart(model: str, work: Work) -> dict[str, int]:
    """Of ``LLM`` in a process that has nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(offline_figures, model, work).result()


def available_mib() -> float:
    """What the machine can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))


def pair_figures(model: str) -> dict[str, int]:
    """Of two servers that start together, both added up."""
    before = available_mib()
    with ExitStack() as first, ExitStack() as second, ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(stack.enter_context, serving([model])) for stack in (first, second)]
        servers = [start.result() for start in starts]
        found = {"start": sum(resident_mib(server.pid) for server in servers), "taken": before - available_mib()}
        for server in servers:
            complete(server, [list(range(3, 3 + SHORT_TOKENS))], SHORT_OUTPUTS)
        found["short"] = sum(resident_mib(server.pid) for server in servers)
    return {stage: round(mib) for stage, mib in found.items()}


def show(console: Console, figures: dict[str, dict[str, int]]) -> None:
    """The table."""
    table = Table(title="resident memory, MiB", box=SIMPLE_HEAD)
    table.add_column("")
    for part in figures:
        table.add_column("two servers" if part == "pair" else part, justify="right", no_wrap=True)
    for stage, title in STAGES.items():
        table.add_row(title, *(f"{found[stage]:,}" if stage in found else "" for found in figures.values()))
    console.print(table)


def main(given: list[str] | None = None) -> None:
    """Measure, show, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="what LLM(model=...) takes; default %(default)s")
    parser.add_argument("--only", default=",".join(PARTS), help="what to measure; default %(default)s")
    parser.add_argument("--requests", type=int, default=64, help="long requests; default %(default)s")
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="tokens of each prompt; default %(default)s")
    parser.add_argument("--outputs", type=int, default=32, help="outputs of each; default %(default)s")
    arguments = parser.parse_args(given)
    work = Work(arguments.requests, arguments.prompt_tokens, arguments.outputs)
    measure: dict[str, Callable[[], dict[str, int]]] = {
        "server": lambda: server_figures(arguments.model, work),
        "offline": lambda: apart(arguments.model, work),
        "pair": lambda: pair_figures(arguments.model),
    }
    figures = {part: measure[part]() for part in arguments.only.split(",")}
    show(Console(), figures)
    print(json.dumps({**figures, "model": arguments.model, **vars(work)}))


if __name__ == "__main__":
    main()
