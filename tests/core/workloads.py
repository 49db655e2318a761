"""Random small configurations and workloads, made to be crowded: few blocks, shared prefixes, stops that happen."""

from __future__ import annotations

import dataclasses
import os
import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headway.config import CacheConfig, SchedulerConfig
from headway.core.request import Request
from tests.core.builders import EOS, make_request

VOCABULARY = 8
"""Sampled tokens are below this, so ``EOS`` and ``STOP`` come often."""
STOP = 2

runpy.run_path(str(Path(__file__).parents[2] / "examples" / "custom_policy.py"))  # registers "paying_first"
POLICIES = ("fcfs", "priority", "shortest", "longest_prefix", "deadline", "fair", "paying_first")


def examples(share: float) -> settings:
    """Settings of one random test: its share of HEADWAY_EXAMPLES, or of a small fixed set that is always the same."""
    return _examples(share, 800)


def pressed_examples(share: float) -> settings:
    """The same for tests of memory pressure, whose shares add up to 1."""
    return _examples(share, 500)


def _examples(share: float, by_default: int) -> settings:
    wanted = os.environ.get("HEADWAY_EXAMPLES")
    return settings(
        max_examples=max(1, int(share * int(wanted or by_default))),
        derandomize=wanted is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Workload:
    """Arguments for ``drive``."""

    config: SchedulerConfig
    cache: CacheConfig
    specs: list[tuple[int, dict[str, object]]]
    aborts: dict[int, list[str]] = field(default_factory=dict)
    late_aborts: dict[int, list[str]] = field(default_factory=dict)
    failures: dict[int, dict[int, str]] = field(default_factory=dict)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis prints a failing example: without default values."""
        plain = {
            "min_tokens": 0,
            "priority": 0,
            "cache_salt": "",
            "stop_token_ids": (),
            "prompt_logprobs": None,
            "eos_token_ids": (EOS,),
            "tenant": "",
            "deadline_s": None,
            "slo": "",
        }
        lines = [
            f"step {step}: { ({name: value for name, value in spec.items() if plain.get(name, '?') != value}) }"
            for step, spec in self.specs
        ]
        disturbed = f"aborts={self.aborts} late_aborts={self.late_aborts} failures={self.failures}"
        printer.text("\n".join(["Workload", repr(self.config), repr(self.cache), *lines, disturbed]))

    def arrivals(self) -> dict[int, list[Request]]:
        """Fresh requests by step of arrival."""
        arrivals: dict[int, list[Request]] = {}
        for step, spec in self.specs:
            arrivals.setdefault(step, []).append(make_request(**spec))  # type: ignore[arg-type]
        return arrivals


class Dice:
    """Small choices out of bytes that hypothesis draws at once, which is far faster than one draw per choice."""

    def __init__(self, data: bytes) -> None:
        self.data = iter(data)

    def below(self, limit: int) -> int:
        return next(self.data) % limit

    def one_of(self, *choices: Any) -> Any:
        return choices[self.below(len(choices))]


def make_random_configs(dice: Dice) -> tuple[SchedulerConfig, CacheConfig]:
    """Tiny pools and budgets, every option on and off. Mostly the pool holds one to three of the longest requests."""
    slots, length, chunked = dice.one_of(4, 3, 2, 5, 6, 1), 8 + dice.below(33), dice.one_of(True, True, True, False)
    budget = slots + dice.below(21)
    if not chunked:
        budget = max(budget, length)
    highest_threshold = min(budget, length, 7) - 1
    threshold = dice.below(7)
    config = SchedulerConfig(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        max_model_len=length,
        enable_chunked_prefill=chunked,
        scheduling_policy=dice.one_of("priority", "priority", "fcfs"),
        watermark=dice.one_of(0.0, 0.0, 0.1, 0.3),
        prefill_schedule_interval=dice.one_of(1, 1, 1, 2, 3, 4),
        long_prefill_token_threshold=min(threshold, highest_threshold) if chunked else 0,
    )
    size, groups = dice.one_of(1, 2, 4), dice.one_of(1, 1, 2)
    tokens = length * dice.one_of(4, 3, 5, 6, 8, 12) // 4
    cache = CacheConfig(
        block_size=size,
        num_blocks=max(4, groups * tokens // size),
        enable_prefix_caching=dice.one_of(True, True, False),
        num_groups=groups,
    )
    return config, cache


def press(dice: Dice, config: SchedulerConfig, cache: CacheConfig) -> tuple[SchedulerConfig, CacheConfig]:
    """The same configuration with the options of docs/design/memory.md at random, mostly with a small host tier."""
    mode, policy = dice.one_of("swap", "swap", "recompute", "auto"), dice.one_of(*POLICIES)
    num_blocks = max(4, cache.num_blocks * dice.one_of(2, 3, 4) // 4)
    num_host_blocks = num_blocks * dice.one_of(1, 2, 4, 8) // 4
    if mode == "recompute" or (mode == "auto" and dice.below(8) == 0):
        num_host_blocks = 0
    config = dataclasses.replace(
        config,
        scheduling_policy=policy,
        ageing_s=dice.one_of(None, 0, 2, 5) if policy in ("priority", "shortest", "longest_prefix") else None,
        preemption_mode=mode,
        victim=dice.one_of("newest", "cheapest"),
        reservation=dice.one_of("prompt", "nothing", "nothing", "all", "predicted"),
        max_overtakes=dice.one_of(0, 0, 1, 3),
    )
    return config, dataclasses.replace(cache, num_blocks=num_blocks, num_host_blocks=num_host_blocks)


def make_random_spec(dice: Dice, number: int, longest: int) -> dict[str, object]:
    """Arguments of ``make_request``. Prompts are a shared beginning and a short tail of few kinds."""
    family, shared, tail, kind, rare = (dice.below(limit) for limit in (2, 21, 7, 3, 20))
    prompt = [10 + (family + place) % 5 for place in range(shared)] + [20 + kind] * tail
    if rare != 1:
        prompt = prompt[-longest:] or [20]
    most, least, flags = dice.one_of(5, 2, 12, 30, 1, None), dice.below(4), dice.below(16)
    return {
        "request_id": f"r{max(0, number - 1) if rare == 2 else number}",
        "prompt": prompt,
        "max_tokens": most,
        "min_tokens": min(most or least, least),
        "priority": dice.below(3),
        "cache_salt": "pepper" if flags & 3 == 3 else "",
        "eos_token_ids": (EOS,),
        "ignore_eos": flags & 4 == 0,
        "stop_token_ids": (STOP,) if flags & 8 else (),
        "prompt_logprobs": 1 if rare == 3 else None,
    }


def press_spec(dice: Dice, spec: dict[str, object]) -> None:
    """Outputs that make requests grow, and what policies look at."""
    if dice.below(4):
        spec["ignore_eos"], spec["stop_token_ids"] = True, ()
        spec["max_tokens"] = dice.one_of(8, 12, 30, None)
    if dice.below(2):
        prompt: Any = spec["prompt"]
        spec["prompt"] = prompt[: 1 + dice.below(8)]
    spec["tenant"] = dice.one_of("", "paid-one", "two")
    spec["deadline_s"], spec["slo"] = dice.one_of((None, ""), (None, "interactive"), (3.0, ""), (12.0, "batch"))


def dice(count: int) -> st.SearchStrategy[Dice]:
    """Dice for ``count`` choices."""
    return st.binary(min_size=count, max_size=count).map(Dice)


@st.composite
def workloads(draw: st.DrawFn, disturbed: bool = True, policy: str = "", pressed: bool = False) -> Workload:
    """A configuration with 1 to 9 requests; disturbed ones have aborts, failing rows and names used twice.

    Pressed ones have the options of docs/design/memory.md at random.
    """
    config, cache = make_random_configs(draw(dice(13)))
    if pressed:
        config, cache = press(draw(dice(10)), config, cache)
    if policy:
        config = dataclasses.replace(config, scheduling_policy=policy)
    longest = min(config.max_model_len, cache.num_blocks // cache.num_groups * cache.block_size) - 1
    step, specs = 1, []
    for number, one in enumerate(draw(st.lists(dice(16), min_size=1, max_size=9))):
        step += one.one_of(0, 0, 1, 1, 2)
        specs.append((step, make_random_spec(one, number, longest)))
        if pressed:
            press_spec(one, specs[-1][1])
        if not disturbed:
            specs[-1][1]["request_id"] = f"r{number}"
    workload = Workload(config, cache, specs)
    for one in draw(st.lists(dice(3), max_size=3)) if disturbed else ():
        when, what, name = 1 + one.below(20), one.below(5), f"r{one.below(len(specs))}"
        if what == 0:
            workload.failures[when] = {0: "broken"}
        elif what < 3:
            workload.aborts.setdefault(when, []).append(name)
        else:
            workload.late_aborts.setdefault(when, []).append(name)
    return workload
