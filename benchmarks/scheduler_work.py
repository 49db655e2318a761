"""The work that schedulers are measured on, and the ruler: NumPy and the standard library only.

Both ``scheduler_overhead.py`` (Headway) and ``vllm_scheduler_probe.py`` (vLLM, in its own interpreter) import this
file, so both do the same requests in the same order and are timed by the same lines. What is timed is what a serving
loop spends outside the model: adding arrivals, ``schedule`` and ``update``. Making up the model's results is not timed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

BLOCK_SIZE = 16
VOCAB_SIZE = 32_000
SEED = 20261129
MAX_MODEL_LEN = 2048
UNENDING = MAX_MODEL_LEN - 512
"""Output tokens of a request that must not end while it is measured."""


@dataclass(frozen=True)
class Work:
    """One request of the workload: its prompt, and after how many output tokens it ends."""

    name: str
    prompt: Int32
    max_tokens: int


@dataclass(frozen=True)
class Limits:
    """The size of the scheduler that the work is done with."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    num_groups: int = 1


@dataclass(frozen=True)
class StepCount:
    """What one step did.

    Attributes:
        seconds: time in arrivals, schedule and update.
        num_finished: requests that ended.
        num_rows: requests that were given tokens.
        num_tokens: tokens they were given.
        only_decodes: whether every row ran one token and sampled.
    """

    seconds: float
    num_finished: int
    num_rows: int
    num_tokens: int
    only_decodes: bool


class Bench(Protocol):
    """A scheduler under measurement."""

    def step(self, arrivals: list[Any]) -> StepCount:
        """Add ``arrivals`` (made by :meth:`prepare`), schedule, make up a result, update."""
        ...

    def prepare(self, work: Work) -> Any:
        """What the server has in its hands when a request arrives (not timed)."""
        ...

    def counters(self) -> dict[str, int]:
        """Totals: ``preemptions`` and ``cached_tokens`` as far as the scheduler tells."""
        ...


def steady_work(num_running: int) -> list[Work]:
    """``num_running`` requests with prompts of 150 to 250 tokens that decode for as long as anyone looks."""
    random = np.random.default_rng(SEED)
    lengths = random.integers(150, 251, num_running)
    return [
        Work(f"steady-{index}", random.integers(0, VOCAB_SIZE, length, dtype=np.int32), UNENDING)
        for index, length in enumerate(lengths)
    ]


def steady_limits(num_running: int, num_groups: int = 1) -> Limits:
    """Room for all of :func:`steady_work` to run at once."""
    blocks = num_running * (MAX_MODEL_LEN // 2 // BLOCK_SIZE) * num_groups
    return Limits(num_running, max(8192, num_running), blocks, num_groups)


NUM_PREFIXES = 32
PREFIX_TOKENS = 128
CHURN_LIVE = 288
CHURN_LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=4096, num_blocks=2000)
"""Fewer slots than live requests, and too few blocks for 256 of them: some are preempted."""


def churn_work() -> Iterator[Work]:
    """Requests without end: one of 32 shared prefixes (the first come up more often), own tokens, a short output."""
    random = np.random.default_rng(SEED)
    prefixes = random.integers(0, VOCAB_SIZE, (NUM_PREFIXES, PREFIX_TOKENS), dtype=np.int32)
    index = 0
    while True:
        prefix = prefixes[int(NUM_PREFIXES * random.random() ** 2)]
        own = random.integers(0, VOCAB_SIZE, int(random.integers(30, 121)), dtype=np.int32)
        yield Work(f"churn-{index}", np.concatenate([prefix, own]), int(random.integers(16, 113)))
        index += 1


def made_up_tokens(num_rows: int, step: int) -> Int32:
    """int32[num_rows]: what the model might have sampled in a step."""
    return np.random.default_rng((SEED, step)).integers(0, VOCAB_SIZE, num_rows, dtype=np.int32)


def clock() -> float:
    """Seconds, for differences."""
    return time.perf_counter()


def settle_garbage() -> None:
    """Collect, and set what survives aside, as engines do at start-up. The collector stays on during the measurement,
    so a scheduler pays for the garbage it makes, but not for what was there before."""
    gc.collect()
    gc.freeze()


def in_microseconds(seconds: list[float]) -> dict[str, float]:
    """Median, 90th percentile and mean of step times."""
    microseconds = np.array(seconds) * 1e6
    return {
        "median_us": round(float(np.median(microseconds)), 1),
        "p90_us": round(float(np.percentile(microseconds, 90)), 1),
        "mean_us": round(float(microseconds.mean()), 1),
        "num_steps": len(seconds),
    }


def measure_steady(bench: Bench, num_running: int, num_steps: int) -> dict[str, Any]:
    """Run the prompts, then time ``num_steps`` steps in which all requests decode."""
    arrivals = [bench.prepare(work) for work in steady_work(num_running)]
    count = bench.step(arrivals)
    for _ in range(400):
        if count.only_decodes and count.num_rows == num_running:
            break
        count = bench.step([])
    else:
        raise RuntimeError(f"{num_running} requests never came to decode all together")
    for _ in range(20):
        bench.step([])
    settle_garbage()
    counts = [bench.step([]) for _ in range(num_steps)]
    if any(count.num_rows != num_running or not count.only_decodes for count in counts):
        raise RuntimeError("a measured step was no steady decode")
    return in_microseconds([count.seconds for count in counts])


def measure_churn(bench: Bench, num_steps: int) -> dict[str, Any]:
    """Keep 288 requests live, each that ends replaced by a new one, and time ``num_steps`` steps after warming up."""
    source = churn_work()
    missing = CHURN_LIVE
    counts: list[StepCount] = []
    warm_up = 150
    before: dict[str, int] = {}
    num_arrived = 0
    for step in range(warm_up + num_steps):
        if step == warm_up:
            settle_garbage()
            before, num_arrived = bench.counters(), 0
        arrivals = [bench.prepare(next(source)) for _ in range(missing)]
        num_arrived += missing
        count = bench.step(arrivals)
        missing = count.num_finished
        counts.append(count)
    measured = counts[warm_up:]
    changes = {name: value - before[name] for name, value in bench.counters().items()}
    return {
        **in_microseconds([count.seconds for count in measured]),
        "arrivals": num_arrived,
        "finished": sum(count.num_finished for count in measured),
        "mean_rows": round(float(np.mean([count.num_rows for count in measured])), 1),
        "mean_tokens": round(float(np.mean([count.num_tokens for count in measured])), 1),
        **changes,
    }
