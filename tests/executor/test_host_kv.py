"""Swap copies: what comes back is what went out, bit for bit; what was lost on the way is known to be lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headway.config import CacheConfig, ConfigError
from headway.core.plan import AdmittedRow, NewBlocks, StepPlan
from headway.executor import host_kv, memory
from headway.executor.host_kv import HostKV
from headway.executor.memory import KVMemoryError
from tests.executor.builders import BLOCK, Driver, make_executor

PROMPT = [7, 3, 9, 9, 21, 4, 30, 2, 8, 11]
HOST_CACHE = CacheConfig(block_size=BLOCK, num_blocks=60, num_host_blocks=12)


def pairs(*rows: tuple[int, int]) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 2)


def random_caches(num_blocks: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (num_blocks + 1, 2, 2, BLOCK, 8)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("num_buffered", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_come_back_bit_for_bit(num_buffered: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = random_caches(20, dtype)
    before = [cache.clone() for cache in caches]
    block_bytes = sum(cache[0].nbytes for cache in caches)
    monkeypatch.setattr(host_kv, "BUFFER_BYTES", num_buffered * block_bytes)
    host = HostKV(caches, 9)

    host.swap_out(pairs((4, 2), (1, 3), (17, 4), (20, 9), (3, 1)))
    for cache in caches:
        cache.fill_(-1.0)
    ruined = host.swap_in(pairs((9, 5), (2, 6), (3, 19), (4, 1), (1, 20)))

    assert not len(ruined)
    for cache, old in zip(caches, before, strict=True):
        for source, target in ((20, 5), (4, 6), (1, 19), (17, 1), (3, 20)):
            assert torch.equal(cache[target], old[source])
        assert (cache[[2, 3, 4, 17]] == -1.0).all()


def test_one_host_block_may_come_back_twice() -> None:
    caches = random_caches(6)
    host = HostKV(caches, 2)
    host.swap_out(pairs((3, 2)))

    host.swap_in(pairs((2, 5), (2, 6)))

    assert all(torch.equal(cache[5], cache[3]) and torch.equal(cache[6], cache[3]) for cache in caches)


def test_no_pairs_are_no_work() -> None:
    host = HostKV(random_caches(2), 2)

    host.swap_out(pairs())

    assert not len(host.swap_in(pairs()))


@pytest.mark.parametrize(
    ("move", "rows", "message"),
    [
        ("swap_out", [(7, 1)], "must be a device block, 1 to 6"),
        ("swap_out", [(0, 1)], "must be a device block"),
        ("swap_out", [(1, 3)], "must be a host block, 1 to 2"),
        ("swap_in", [(0, 1)], "must be a host block"),
        ("swap_in", [(1, -1)], "must be a device block"),
    ],
)
def test_blocks_that_do_not_exist_are_refused(move: str, rows: list[tuple[int, int]], message: str) -> None:
    host = HostKV(random_caches(6), 2)

    with pytest.raises(ConfigError, match=message) as refusal:
        getattr(host, move)(pairs(*rows))

    assert refusal.value.field == move


def test_what_could_not_be_stored_is_lost_until_something_else_is() -> None:
    caches = random_caches(6)
    host = HostKV(caches, 4)
    host.swap_out(pairs((1, 4)))
    with pytest.raises(ConfigError):
        host.swap_out(pairs((2, 1), (3, 2), (99, 3)))

    assert host.swap_in(pairs((1, 5), (4, 6), (2, 2))).tolist() == [5, 2]
    host.swap_out(pairs((3, 1)))
    assert host.swap_in(pairs((1, 5), (2, 6))).tolist() == [6]


def test_a_host_tier_that_does_not_fit_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheConfig(block_size=BLOCK, num_blocks=3, num_host_blocks=99)
    block_bytes = 2 * 2 * 1 * BLOCK * 8 * 4
    # What the device's own blocks will take is still counted as free by the system.
    monkeypatch.setattr(memory, "available_bytes", lambda device: (4 + 50) * block_bytes)

    with pytest.raises(KVMemoryError, match=f"needs {100 * block_bytes} bytes in host memory") as refusal:
        make_executor(cache=cache)

    assert refusal.value.field == "num_host_blocks"
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (100 * block_bytes, 50 * block_bytes)
    assert "at most 49 blocks fit" in str(refusal.value)


def test_the_host_tier_is_counted_apart() -> None:
    executor = make_executor(cache=HOST_CACHE)

    assert executor.host_kv_bytes == executor.kv_bytes // 61 * 13
    assert make_executor().host_kv_bytes == 0


class Swapping:
    """One request on slot 0 that ran some steps, and plans by hand that move its blocks about."""

    def __init__(self, num_steps: int = 3) -> None:
        self.driver = Driver(make_executor(cache=HOST_CACHE))
        self.driver.admit(0, PROMPT)
        self.driver.step({0: len(PROMPT)})
        self.driver.decode(0, num_steps)
        self.num_computed = len(PROMPT) + num_steps
        self.executor = self.driver.executor

    def submit(self, step: int, row: AdmittedRow, num_tokens: int, **copies: Any) -> Any:
        nothing = np.zeros(0, np.int32)
        start = row.num_computed_tokens
        self.executor.submit(
            StepPlan(
                step=step,
                slots=np.array([row.slot], np.int32),
                num_scheduled=np.array([num_tokens], np.int32),
                starts=np.array([start], np.int32),
                samples=np.array([start + num_tokens == len(row.tokens)]),
                new_blocks=(NewBlocks(nothing, nothing, nothing),),
                admitted=(row,),
                released=nothing,
                **copies,
            )
        )
        return self.executor.collect()

    def row(self, slot: int, tokens: list[int], num_computed: int, blocks: list[int]) -> AdmittedRow:
        table = (np.array(blocks, np.int32),)
        request = self.driver._requests[0]
        return AdmittedRow(
            slot, 7 + slot, f"s{slot}", np.array(tokens, np.int32), len(PROMPT), num_computed, table,
            request.sampling, resumed=num_computed > 0,
        )  # fmt: skip

    @property
    def table(self) -> list[int]:
        return self.driver._held[0]

    @property
    def tokens(self) -> list[int]:
        return PROMPT + self.driver.outputs[0]


def test_a_request_goes_on_from_other_blocks_as_if_nothing_had_happened() -> None:
    swapping = Swapping()
    expected = list(swapping.driver.outputs[0])
    tokens, table = swapping.tokens, swapping.table
    out = pairs(*zip(table, range(2, 2 + len(table)), strict=True))
    other = swapping.row(1, [5] * 30, 0, [*table, 30, 31, 32, 33])  # takes its blocks over in the same step

    first = swapping.submit(50, other, 30, swap_out=out)
    back = pairs(*((host, 40 + place) for place, (_, host) in enumerate(out.tolist())))
    row = swapping.row(2, tokens, swapping.num_computed, [40 + place for place in range(len(table))])
    second = swapping.submit(51, row, 1, swap_in=back)

    assert not first.failed
    assert not second.failed
    alone = Driver()
    alone.admit(0, PROMPT)
    alone.step({0: len(PROMPT)})
    alone.decode(0, 4)
    assert [*expected, int(second.tokens[0, 0])] == alone.outputs[0]


def test_copies_and_computation_are_timed_apart() -> None:
    swapping = Swapping()
    plain = swapping.driver.step({0: 1})

    copying = swapping.submit(50, swapping.row(1, PROMPT, 0, [30, 31, 32]), 10, swap_out=pairs((swapping.table[0], 1)))

    assert plain.copy_s == 0.0 and plain.forward_s > 0.0
    assert copying.copy_s > 0.0 and copying.forward_s > 0.0
    assert swapping.executor.last_times["copy"] > 0.0


def test_a_failing_copy_fails_its_plan_and_whoever_comes_back_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    swapping = Swapping()
    tokens, table = swapping.tokens, swapping.table
    out = pairs(*zip(table, range(1, 1 + len(table)), strict=True))

    def fail(*_: object) -> None:
        raise RuntimeError("the bus is down")

    with monkeypatch.context() as patch:
        patch.setattr(host_kv, "_runs", fail)
        result = swapping.submit(50, swapping.row(1, PROMPT, 0, [30, 31, 32]), 10, swap_out=out)
    assert result.failed == {0: "the step failed: RuntimeError: the bus is down"}
    assert (result.copy_s, result.forward_s) == (0.0, 0.0)

    back = pairs(*((host, 39 + host) for _, host in out.tolist()))
    row = swapping.row(2, tokens, swapping.num_computed, back[:, 1].tolist())
    result = swapping.submit(51, row, 1, swap_in=back)
    assert "KV was lost" in result.failed[0]
    fresh = swapping.submit(52, swapping.row(2, tokens, 0, back[:, 1].tolist()), len(tokens))
    assert not fresh.failed


def test_a_plan_that_swaps_without_a_host_tier_fails() -> None:
    swapping = Swapping()
    swapping.executor = make_executor()

    result = swapping.submit(1, swapping.row(1, PROMPT, 0, [30, 31, 32]), 10, swap_out=pairs((1, 1)))

    assert "num_host_blocks" in result.failed[0]
