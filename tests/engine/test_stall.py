"""The report of a stall has everything that could explain it."""

from __future__ import annotations

from headway.config import SamplingParams
from headway.engine.stall import MAX_LISTED, describe_state
from tests.engine.builders import ScriptedExecutor, TimedExecutor, echo, make_engine


def test_pools_rows_and_queue_are_listed_with_their_reasons() -> None:
    tight = {"num_blocks": 14, "max_num_batched_tokens": 12, "num_host_blocks": 30, "preemption_mode": "swap"}
    engine = make_engine(TimedExecutor(), **tight)
    for number in range(6):
        prompt = [number + 10 * place for place in range(12)]
        engine.add(engine.prepare(prompt, SamplingParams(max_tokens=20, ignore_eos=True), request_id=f"r{number}"))
    while not engine.scheduler.num_swapped:
        engine.step()

    lines = describe_state(engine.scheduler).splitlines()

    pool, host = engine.scheduler.kv.pool, engine.scheduler.kv.host
    assert host is not None
    assert f"KV blocks: {pool.num_free} of 14 free" in lines[0]
    assert f"on the host {host.pool.num_free} of 30 free" in lines[0]
    assert lines[1] == f"running: {engine.scheduler.num_running}"
    assert lines[2].startswith("  r0 in slot 0: ")
    assert "was served" in lines[2]
    place = lines.index(f"waiting: {engine.scheduler.num_waiting}")
    assert "(swapped)" in lines[place + 1]
    assert "preempted 1 times; preempted (need 0, free 0, by r" in lines[place + 1]
    assert len(lines) == 3 + engine.scheduler.num_running + engine.scheduler.num_waiting


def test_long_lists_are_cut() -> None:
    engine = make_engine(ScriptedExecutor(echo))
    for number in range(MAX_LISTED + 5):
        engine.add(engine.prepare([1, 2], request_id=f"r{number}"))

    lines = describe_state(engine.scheduler).splitlines()

    assert lines[-1] == "  and 5 more"
    assert len(lines) == 3 + MAX_LISTED + 1
