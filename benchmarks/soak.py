"""The server at twice its capacity for minutes, with clients that leave at any moment: does anything leak or get stuck?

Twice as many clients as the engine has slots send one call after the other, of every kind; a third of them leave at a
random moment, and admission turns some away. In the end every accepted call whose client stayed must have come to
its proper end, and the server must be as it was: no requests, no blocks held, no more tasks, no more memory.

    python benchmarks/soak.py [--minutes 5] [--model MODEL] [--slots 16]

Without ``--model`` a tiny random model is made: it is the server that is tested. The last line of the output is one
JSON object; the exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_client import HOST, ServerProcess, Stream, get, post, serving
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.models.tiny import make_tiny

SHARE_LEAVING = 0.33
REST_TIMEOUT_S = 60.0
RETRY_S = 0.05
MIB = 2**20
GROWTH_BYTES, GROWTH_SHARE = 16 * MIB, 0.03
"""Memory may grow by so much between the second quarter of the time and the last: heaps are never quite still."""
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "rests", "by", "the", "sea")
FORMS: tuple[dict[str, Any], ...] = (
    {"guided_regex": "[a-z]{3,9}"},
    {"guided_choice": ["yes", "no", "perhaps"]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a", 1, None]}}}},
)


@dataclass
class Tally:
    """What became of the calls.

    Attributes:
        counts: by outcome: "ended", "left", "turned away", and what must not be: "cut off", "failed".
        slowest_s: of those that ended.
        memory: (time, bytes) of the server.
        problem: the first answer that must not be.
    """

    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    problem: str = ""

    def enter(self, stream: Stream) -> None:
        """Count a call that is over."""
        if stream.left:
            self.counts["left"] += 1
        elif stream.status == 503:
            self.counts["turned away"] += 1
        elif stream.status != 200:
            self._note("failed", stream)
        elif not (stream.ended or is_whole(stream.body)) or b'"error"' in stream.body:
            self._note("cut off", stream)
        else:
            self.counts["ended"] += 1
            self.slowest_s = max(self.slowest_s, stream.end_s - stream.begin_s)

    def _note(self, what: str, stream: Stream) -> None:
        self.counts[what] += 1
        self.problem = self.problem or f"{what}: status {stream.status}, {stream.body[-300:]!r}"

    def growth(self) -> tuple[int, int]:
        """Memory in the second quarter of the time, and in the last; medians, in bytes."""
        quarter = len(self.memory) // 4
        if not quarter:
            return 0, 0
        early, late = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return tuple(int(statistics.median(rss for _, rss in part)) for part in (early, late))  # type: ignore[return-value]


def is_whole(body: bytes) -> bool:
    """Whether an answer that is no stream is all there."""
    try:
        return "usage" in json.loads(body)
    except ValueError:
        return False


def random_call(chooser: random.Random) -> bytes:
    """A call of any kind."""
    text = " ".join(chooser.choices(WORDS, k=chooser.randint(1, 120)))
    body: dict[str, Any] = {
        "max_tokens": chooser.randint(1, 80),
        "stream": chooser.random() < 0.8,
        "temperature": chooser.choice([0, 1]),
        "n": chooser.choice([1, 1, 1, 2]),
        "ignore_eos": True,
    }
    if chooser.random() < 0.1:
        body |= {**chooser.choice(FORMS), "ignore_eos": False}
    if chooser.random() < 0.3:
        return post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})
    return post("/v1/completions", {"prompt": text, **body})


async def client(port: int, chooser: random.Random, until_s: float, tally: Tally) -> None:
    """One call after the other until time is up."""
    loop = asyncio.get_running_loop()
    mean_s = 0.5
    while time.monotonic() < until_s:
        stream = Stream(random_call(chooser))
        if chooser.random() < SHARE_LEAVING:
            stream.leave_after_s = chooser.uniform(0.0, 1.5 * mean_s)
        await loop.create_connection(lambda each=stream: each, HOST, port)  # type: ignore[misc]
        await stream.done.wait()
        tally.enter(stream)
        if stream.status == 200 and not stream.left:
            mean_s = 0.9 * mean_s + 0.1 * (stream.end_s - stream.begin_s)
        elif stream.status == 503:
            await asyncio.sleep(RETRY_S)


async def watch(server: ServerProcess, until_s: float, tally: Tally) -> None:
    """Note the server's memory, ten times a second at most."""
    pause_s = max(0.1, (until_s - time.monotonic()) / 600)
    while time.monotonic() < until_s:
        tally.memory.append((time.monotonic(), server.rss_bytes))
        await asyncio.sleep(pause_s)


async def run(server: ServerProcess, num_clients: int, seconds: float, seed: int) -> Tally:
    """All clients at once."""
    tally, until_s = Tally(), time.monotonic() + seconds
    clients = [client(server.port, random.Random(seed + number), until_s, tally) for number in range(num_clients)]
    await asyncio.gather(watch(server, until_s, tally), *clients)
    return tally


def state(port: int) -> dict[str, float]:
    """What must be after the load as it was before."""
    wanted = {
        "headway:num_requests_running": "running",
        "headway:num_requests_waiting": "waiting",
        "headway:admission_requests": "counted by admission",
        "headway:open_calls": "open calls",
        "headway:event_loop_tasks": "tasks",
    }
    found: dict[str, float] = {}
    for line in get(port, "/metrics")[1].decode().splitlines():
        name, _, labels = line.partition("{")
        if name in wanted:
            found[wanted[name]] = float(line.rpartition(" ")[2])
        elif name == "headway:kv_cache_blocks" and 'state="held"' in labels:
            found["blocks held"] = float(line.rpartition(" ")[2])
    return found


def rest(port: int, before: dict[str, float]) -> dict[str, float]:
    """The state once it is at most what it was, or when the time for that is up."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    while True:
        now = state(port)
        if all(now[name] <= before[name] for name in before) or time.monotonic() > deadline:
            return now
        time.sleep(0.3)


def judge(tally: Tally, before: dict[str, float], after: dict[str, float], *, check_memory: bool) -> list[str]:
    """What is wrong, in sentences."""
    wrong = [tally.problem] if tally.problem else []
    wrong += [
        f"{name}: {before[name]:g} before, {after[name]:g} after" for name in before if after[name] > before[name]
    ]
    early, late = tally.growth()
    if check_memory and late - early > max(GROWTH_BYTES, GROWTH_SHARE * early):
        wrong.append(f"memory grew from {early / MIB:.0f} to {late / MIB:.0f} MiB")
    if not all(tally.counts[outcome] for outcome in ("ended", "left", "turned away")):
        wrong.append("the load was none: not every outcome was seen")
    return wrong


def show(console: Console, tally: Tally, before: dict[str, float], after: dict[str, float]) -> None:
    """The counts, and the server before and after."""
    table = Table(title="calls", box=SIMPLE_HEAD)
    table.add_column("")
    table.add_column("", justify="right")
    for outcome, count in sorted(tally.counts.items()):
        table.add_row(outcome, f"{count:,}")
    console.print(table)
    table = Table(title="the server", box=SIMPLE_HEAD)
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for name, value in before.items():
        table.add_row(name, f"{value:g}", f"{after[name]:g}")
    early, late = tally.growth()
    table.add_row("memory MiB (second, last quarter)", f"{early / MIB:.0f}", f"{late / MIB:.0f}")
    console.print(table)


def main() -> int:
    """Soak, show, judge, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long; default %(default)s")
    parser.add_argument("--model", help="what LLM(model=...) takes; default a tiny random one")
    parser.add_argument(
        "--slots", type=int, default=16, help="requests at once that the engine takes; default %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the clients' choices; default %(default)s")
    arguments = parser.parse_args()
    slots, console = arguments.slots, Console()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or str(make_tiny(Path(folder) / "tiny"))
        flags = [f"--max-num-seqs={slots}", f"--max-num-queued-reqs={slots * 3 // 2}", "--max-model-len=1024"]
        # Blocks for half of what the slots could need, so that requests are preempted as well.
        flags += [f"--num-blocks={slots * 12}", "--block-size=16", "--max-num-batched-tokens=256"]
        with serving([model, *flags]) as server:
            asyncio.run(run(server, slots, 2.0, arguments.seed + 1000))
            before = rest(server.port, dict.fromkeys(state(server.port), 0.0) | {"tasks": float("inf")})
            tally = asyncio.run(run(server, 2 * slots, 60 * arguments.minutes, arguments.seed))
            after = rest(server.port, before)
    show(console, tally, before, after)
    wrong = judge(tally, before, after, check_memory=arguments.minutes >= 1)
    for sentence in wrong:
        console.print(f"[red]{sentence}[/]", highlight=False)
    figures = {outcome.replace(" ", "_"): count for outcome, count in sorted(tally.counts.items())}
    memory = [round(size / MIB, 1) for size in tally.growth()]
    print(json.dumps({**figures, "minutes": arguments.minutes, "rss_mib": memory, "after": after, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
