"""Memory is taken by the first write, as the system sees it, and given back; or all at once, or not at all."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

from headway.config import CacheConfig, ConfigError
from headway.executor import memory, reserved
from headway.executor.reserved import ReservedMemory
from tests.executor.builders import BLOCK, Driver, make_executor

MIB = 2**20
PAGE = mmap.PAGESIZE
PROMPT = [7, 3, 9, 9, 21, 4, 30, 2, 8, 11]


def process_bytes(name: str = "RssAnon") -> int:
    """What the system says about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def test_reserving_takes_addresses_and_no_memory_and_writing_takes_what_is_written() -> None:
    resident, addresses = process_bytes(), process_bytes("VmSize")
    region = ReservedMemory(2048 * MIB)

    assert process_bytes("VmSize") - addresses >= 2048 * MIB
    assert process_bytes() - resident < 16 * MIB
    assert region.resident_bytes() == 0

    region.buffer[512 * MIB : 576 * MIB] = 1
    assert region.resident_bytes() == 64 * MIB
    assert region.resident_bytes(512 * MIB) == 0
    assert 64 * MIB <= process_bytes() - resident < 80 * MIB
    region.buffer[512 * MIB : 576 * MIB] = 2
    assert region.resident_bytes() == 64 * MIB, "written again"
    assert not region.buffer[: 4 * MIB].any(), "never written"

    del region
    gc.collect()
    assert process_bytes() - resident < 16 * MIB
    assert process_bytes("VmSize") - addresses < 1024 * MIB


def test_a_tensor_keeps_its_memory_alive() -> None:
    part = ReservedMemory(4 * MIB).buffer[MIB : 2 * MIB]
    gc.collect()
    part.fill_(3)

    assert int(part.sum(dtype=torch.int64)) == 3 * MIB


def test_huge_pages_begin_at_the_buffer_and_change_no_content() -> None:
    region = ReservedMemory(64 * MIB, huge_pages=True)
    region.buffer[5] = 7

    assert region.buffer.data_ptr() % reserved.huge_page_bytes() == 0
    assert PAGE <= (region.resident_bytes() or 0) <= reserved.huge_page_bytes()
    assert int(region.buffer.sum()) == 7


def test_sizes_that_are_no_whole_pages() -> None:
    region = ReservedMemory(10_000)
    region.buffer[9_999] = 1

    assert region.resident_bytes() == PAGE
    region.buffer.fill_(1)
    assert region.resident_bytes() == 10_000


def test_all_is_taken_at_once_if_it_is_there() -> None:
    region = ReservedMemory(130 * MIB)

    assert region.take(lambda: 130 * MIB) == 130 * MIB
    assert region.resident_bytes() == 130 * MIB
    assert ReservedMemory(MIB).take(lambda: None) == MIB


def test_taking_stops_when_somebody_else_was_faster() -> None:
    """Two start in the same second: each finds all of it free at first, and half as much after every piece."""
    free = iter([200 * MIB, 100 * MIB])
    region = ReservedMemory(190 * MIB)

    taken = region.take(lambda: next(free))

    assert taken == reserved.PIECE_BYTES
    assert region.resident_bytes() == taken


def test_a_pool_follows_what_is_written_and_written_blocks_are_written_again() -> None:
    executor = make_executor(cache=CacheConfig(block_size=BLOCK, num_blocks=4000))
    assert executor.kv_resident_bytes == 0
    driver = Driver(executor)

    driver.admit(0, PROMPT)
    driver.step({0: len(PROMPT)})
    assert executor.kv_resident_bytes == 2 * PAGE, "of each layer the page that has the first blocks"
    for slot in range(1, 7):
        driver.admit(slot, PROMPT * 3)
        driver.step({slot: 30})
    grown = executor.kv_resident_bytes
    assert 2 * PAGE < grown <= 2 * 5 * PAGE, "60 blocks of 256 bytes per layer"

    for slot in range(7):
        driver.release(slot)
    for slot in range(7):
        driver.admit(slot, PROMPT * 3)
        driver.step({slot: 30})
    assert executor.kv_resident_bytes == grown


def test_preallocating_takes_both_tiers_at_start() -> None:
    cache = CacheConfig(block_size=BLOCK, num_blocks=600, num_host_blocks=300)
    executor = make_executor(cache=cache, preallocate=True)

    assert executor.kv_resident_bytes == executor.kv_bytes
    assert executor.host_kv_resident_bytes == executor.host_kv_bytes > 0
    lazy = make_executor(cache=cache)
    assert (lazy.kv_resident_bytes, lazy.host_kv_resident_bytes) == (0, 0)


def test_the_second_of_two_that_preallocate_is_refused_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheConfig(block_size=BLOCK, num_blocks=100_000)
    needed = make_executor(cache=cache).kv_bytes
    free = iter([60 * MIB, 60 * MIB, 40 * MIB])
    monkeypatch.setattr(reserved, "PIECE_BYTES", 8 * MIB)
    monkeypatch.setattr(memory, "available_bytes", lambda device: next(free))
    resident = process_bytes()

    with pytest.raises(ConfigError, match="not free any more") as refusal:
        make_executor(cache=cache, preallocate=True)

    assert 48 * MIB < needed < 60 * MIB
    assert refusal.value.field == "preallocate"
    assert f"after {8 * MIB} of them" in str(refusal.value)
    del refusal
    gc.collect()
    assert process_bytes() - resident < 16 * MIB


def test_addresses_that_the_system_refuses_are_an_error_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: None)

    with pytest.raises(ConfigError, match=r"the system refuses \d+ bytes: Cannot allocate memory") as refusal:
        make_executor(cache=CacheConfig(block_size=BLOCK, num_blocks=2**40))

    assert refusal.value.field == "num_blocks"


def test_a_swap_tier_may_not_take_what_the_pool_will_still_need(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheConfig(block_size=BLOCK, num_blocks=600, num_host_blocks=300)
    fitting = make_executor(cache=cache)
    both = fitting.kv_bytes + fitting.host_kv_bytes
    monkeypatch.setattr(memory, "available_bytes", lambda device: both)
    make_executor(cache=cache)
    monkeypatch.setattr(memory, "available_bytes", lambda device: both - 1)

    with pytest.raises(ConfigError, match="in host memory") as refusal:
        make_executor(cache=cache)

    assert refusal.value.field == "num_host_blocks"


def test_nothing_reads_what_was_not_written() -> None:
    """Blocks full of NaN, as a broken request may leave them, change no token of those that get them next."""
    clean, dirty = Driver(), Driver()
    for layer in dirty.executor._kv.layers:
        layer[1:] = torch.nan
    for driver in (clean, dirty):
        driver.admit(0, PROMPT)
        driver.step({0: 4})
        driver.step({0: len(PROMPT) - 4})
        driver.decode(0, 6)

    assert clean.outputs[0] == dirty.outputs[0]
