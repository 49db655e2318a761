"""``LLM`` from several threads: equal outputs, streams that stop nobody, and an engine that is whole whatever comes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway import LLM, SamplingParams
from headway.core.plan import StepPlan
from headway.engine.llm import OfflineLLM
from headway.engine.outputs import RequestOutput
from headway.engine.turns import FairLock
from tests.engine.builders import ScriptedExecutor, echo, make_engine
from tests.engine.tiny_model import write_tiny_model
from tests.support.gate import PATIENCE_S, Gate

NUM_THREADS, NUM_CALLS = 6, 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(
        str(write_tiny_model(tmp_path_factory.mktemp("threads"))), max_num_seqs=5, max_num_batched_tokens=48
    ) as llm:
        yield llm


def whole(llm: OfflineLLM) -> bool:
    """Whether nothing is left in the engine; anything dropped is ended by the call that finds out."""
    llm.generate("x", SamplingParams(max_tokens=1))
    scheduler = llm.engine.scheduler
    scheduler.check_invariants()
    pool = scheduler.kv.pool
    left = (llm._turns._calls, list(llm._turns._dropped), scheduler.has_unfinished, pool.num_blocks - pool.num_free)
    return left == ({}, [], False, 0)


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    """Results of functions that run at once; an exception of one of them is raised here."""
    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(function) for function in work]
        return [future.result(PATIENCE_S) for future in futures]


def llm_over(executor: Any, **overrides: Any) -> OfflineLLM:
    return OfflineLLM(make_engine(executor, **overrides))


def sampling(number: int) -> SamplingParams:
    return SamplingParams(max_tokens=5 + number % 7, temperature=0.8, seed=number, ignore_eos=True)


def call(llm: LLM, thread: int, number: int) -> list[tuple[str, tuple[int, ...]]]:
    """One of three kinds of calls; what it gave."""
    prompts = [f"thread {thread} call {number} prompt {index}" for index in range(1 + number % 3)]
    params = [sampling(100 * thread + 10 * number + index) for index in range(len(prompts))]
    outputs: list[RequestOutput]
    if number % 3 == 0:
        outputs = llm.generate(prompts, params)
    elif number % 3 == 1:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
    else:
        ends = {index: update.output for index, update in llm.stream(prompts, params) if update.output is not None}
        outputs = [ends[index] for index in range(len(prompts))]
    return [(output.text, output.outputs[0].token_ids) for output in outputs]


def test_outputs_are_those_of_one_thread(tiny: LLM) -> None:
    alone = [[call(tiny, thread, number) for number in range(NUM_CALLS)] for thread in range(NUM_THREADS)]
    barrier = threading.Barrier(NUM_THREADS)

    def run(thread: int) -> Callable[[], Any]:
        def calls() -> Any:
            barrier.wait(PATIENCE_S)
            return [call(tiny, thread, number) for number in range(NUM_CALLS)]

        return calls

    assert in_threads(*(run(thread) for thread in range(NUM_THREADS))) == alone
    assert whole(tiny)


def test_calls_of_threads_share_steps() -> None:
    """No call waits for the end of another one: both are in one plan."""
    gate = Gate()
    executor = ScriptedExecutor(echo, during=gate)
    llm = llm_over(executor)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(llm.generate, "a", SamplingParams(max_tokens=40))
        gate.wait()
        second = pool.submit(llm.generate, "b", SamplingParams(max_tokens=2))
        while not second.done():
            gate.allow(1)
        assert not first.done()
        gate.open()

        assert (first.result()[0].text, second.result()[0].text) == ("a" * 40, "bb")
    assert max(plan.num_rows for plan in executor.plans) == 2


def test_a_stream_that_is_left_open_stops_nobody_and_keeps_what_it_gets() -> None:
    llm = llm_over(ScriptedExecutor(echo))
    stream = llm.stream("abc", SamplingParams(max_tokens=9))
    head = next(stream)[1].text

    others = in_threads(*[lambda: llm.generate("xyz", SamplingParams(max_tokens=20))[0].text] * 3)
    num_steps = llm.engine.scheduler.step
    rest = [update.text for _, update in stream]

    assert others == ["xyz" * 6 + "xy"] * 3
    assert head + "".join(rest) == "abcabcabc"
    assert llm.engine.scheduler.step == num_steps  # all of it was there
    assert whole(llm)


def test_a_stream_may_be_read_by_several_threads() -> None:
    llm = llm_over(ScriptedExecutor(echo))
    stream = llm.stream(["abc", "xy"], SamplingParams(max_tokens=30))

    parts = [part for parts in in_threads(*[lambda: list(stream)] * 4) for part in parts]

    assert sum(len(update.token_ids) for _, update in parts) == 60
    assert sorted(update.output.text for _, update in parts if update.output) == ["abc" * 10, "xy" * 15]


def test_a_stream_is_closed_by_another_thread_while_one_waits_in_it() -> None:
    gate = Gate()
    llm = llm_over(ScriptedExecutor(echo, during=gate))
    stream = llm.stream("abc", SamplingParams(max_tokens=50))
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(list, stream)
        gate.wait()
        closing = pool.submit(stream.close)
        gate.open()

        closing.result(PATIENCE_S)
        assert len(reading.result(PATIENCE_S)) <= 50
    assert list(stream) == []
    assert whole(llm)


def test_a_stream_that_was_never_read_can_be_closed_twice() -> None:
    llm = llm_over(ScriptedExecutor(echo))
    stream = llm.stream("abc")
    stream.close()
    stream.close()

    assert list(stream) == []
    assert whole(llm)


@pytest.mark.parametrize("where", ["between steps", "in a step", "in a step of another thread"])
def test_a_stream_that_is_collected_as_garbage_takes_no_lock_that_it_must_wait_for(where: str) -> None:
    """A finalizer runs wherever memory is collected: here in the middle of a step, with the lock held by its thread."""
    streams: list[Any] = []

    def collect(plan: StepPlan) -> None:
        if where == "in a step" and plan.step == 3:
            streams.clear()
        if where == "in a step of another thread" and plan.step == 3:
            in_threads(streams.clear)

    llm = llm_over(ScriptedExecutor(echo, during=collect))
    streams.append(llm.stream("abc", SamplingParams(max_tokens=100)))
    next(streams[0])
    if where == "between steps":
        streams.clear()
        assert not llm.engine.scheduler.has_unfinished
    [output] = llm.generate("xyz", SamplingParams(max_tokens=6))

    assert output.text == "xyzxyz"
    assert streams == []
    assert whole(llm)


def test_a_stream_in_a_cycle_ends_its_requests_when_it_is_collected() -> None:
    llm = llm_over(ScriptedExecutor(echo))
    cycle: dict[str, Any] = {"stream": llm.stream("abc", SamplingParams(max_tokens=100))}
    cycle["self"] = cycle
    next(cycle["stream"])
    del cycle
    gc.collect()

    assert not llm.engine.scheduler.has_unfinished
    assert whole(llm)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("moment", ["before", "during"])
def test_an_exception_in_a_step_reaches_its_thread_and_leaves_the_engine_whole(
    error: type[BaseException], moment: str
) -> None:
    gate = Gate()
    armed = threading.Event()

    def strike(plan: StepPlan) -> None:
        if armed.is_set() and threading.current_thread().name == "struck":
            armed.clear()
            raise error

    def pause(plan: StepPlan) -> None:
        gate(plan)
        if moment == "during":
            strike(plan)

    executor = ScriptedExecutor(echo, before=strike if moment == "before" else lambda plan: None, during=pause)
    llm = llm_over(executor)
    ends: dict[str, object] = {}

    def generate(name: str) -> None:
        try:
            ends[name] = llm.generate(name, SamplingParams(max_tokens=12))[0].finish_reason
        except BaseException as raised:
            ends[name] = type(raised)

    threads = [threading.Thread(target=generate, args=(name,), name=name) for name in ("struck", "other")]
    for thread in threads:
        thread.start()
    gate.wait()
    armed.set()
    gate.open()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in threads)
    assert ends["other"] in ("length", "error")
    assert ends["struck"] in (error, "error", "length")  # the other thread may have done all steps
    assert whole(llm)


def test_an_exception_thrown_where_a_stream_is_read_ends_only_that_call() -> None:
    llm = llm_over(ScriptedExecutor(echo))

    def fails() -> str:
        with pytest.raises(ZeroDivisionError):
            for _, update in llm.stream("abc", SamplingParams(max_tokens=50)):
                1 / len(update.token_ids[1:])
        return "failed"

    def runs() -> str:
        return llm.generate("xyz", SamplingParams(max_tokens=30))[0].text

    assert in_threads(fails, runs, fails, runs) == ["failed", "xyz" * 10] * 2
    assert whole(llm)


def test_refusals_in_one_thread_are_not_seen_by_others() -> None:
    llm = llm_over(ScriptedExecutor(echo))

    def refused() -> list[str]:
        outputs = llm.generate(["ok", "x" * 500], SamplingParams(max_tokens=4), errors="return")
        return [output.finish_reason for output in outputs]

    results = in_threads(*[refused, lambda: llm.generate("ab", SamplingParams(max_tokens=4))[0].text] * 3)

    assert results == [["length", "refused"], "abab"] * 3
    assert whole(llm)


def test_closing_ends_calls_of_other_threads_with_an_error() -> None:
    gate = Gate()
    llm = llm_over(ScriptedExecutor(echo, during=gate))
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(llm.generate, "abc", SamplingParams(max_tokens=100))
        gate.wait()
        closing = pool.submit(llm.close)
        gate.open()

        closing.result(PATIENCE_S)
        with pytest.raises(RuntimeError, match="closed"):
            running.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("abc")


def test_the_lock_goes_to_who_waits_before_it_goes_back() -> None:
    """With a plain lock the thread that lets go takes it again before the other one has woken up."""
    lock = FairLock()
    taken: list[str] = []
    arrived = threading.Event()

    def once() -> None:
        arrived.set()
        with lock:
            taken.append("other")

    other = threading.Thread(target=once)
    with lock:
        other.start()
        arrived.wait(PATIENCE_S)
        while not lock._door.locked():
            pass
    for _ in range(100):
        with lock:
            taken.append("same")
    other.join(PATIENCE_S)

    assert taken[0] == "other"
