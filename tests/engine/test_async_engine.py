"""The engine in its thread: one message per step, streams that always end, aborts that count at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway.config import SamplingParams
from headway.core.plan import StepPlan
from headway.core.request import RequestRefused
from headway.engine.async_engine import AsyncEngine, EngineDead, join_updates
from headway.engine.engine import Prepared
from headway.engine.messages import StepMessage
from headway.engine.outputs import RequestUpdate
from headway.engine.worker import MOST_ENTRIES
from tests.engine.builders import ScriptedExecutor, echo, make_engine, make_scheduler
from tests.support.gate import PATIENCE_S, Gate


class Ears:
    """A listener that notes everything down."""

    def __init__(self) -> None:
        self.firsts: Counter[int] = Counter()
        self.ends: Counter[int] = Counter()

    def first_token(self, index: int) -> None:
        self.firsts[index] += 1

    def end(self, index: int) -> None:
        self.ends[index] += 1


@asynccontextmanager
async def running(executor: Any, **overrides: Any) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(make_engine(executor, **overrides))
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def prepare(engine: AsyncEngine, name: str, prompt: str = "abc", **sampling: Any) -> Prepared:
    return engine.engine.prepare(prompt, SamplingParams(**{"max_tokens": 8, **sampling}), request_id=name)


async def settled(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def ended(engine: AsyncEngine) -> None:
    """Wait until the engine has let go of everything."""
    await settled(lambda: not engine.num_open and not engine.heartbeat.busy)


async def reached(gate: Gate, num_steps: int = 1) -> None:
    """Wait until so many steps have come to the gate."""
    await asyncio.to_thread(gate.wait, num_steps)


def test_updates_joined_are_the_output() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            updates: list[RequestUpdate] = []
            gate.allow(1)
            async for update in engine.generate(prepare(engine, "a")):
                updates.append(update)
                gate.open()

            assert updates[0].text == "a"
            assert "".join(update.text for update in updates) == "abcabcab"
            assert sum((update.token_ids for update in updates), ()) == tuple(b"abcabcab")
            assert [update.output is not None for update in updates] == [False] * (len(updates) - 1) + [True]

    run(test)


def test_a_step_tells_one_message_for_all_its_requests() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(echo)
        async with running(executor) as engine:
            messages: list[StepMessage] = []
            deliver = engine._on_message
            engine._on_message = lambda message: (messages.append(message), deliver(message))  # type: ignore
            stream = engine.submit([prepare(engine, name) for name in "abcd"])
            async for _ in stream:
                pass

            assert len(messages) == len(executor.plans) == 8
            assert [len(message.updates) for message in messages] == [4] * 8
            assert messages[0].first == stream.serials

    run(test)


def test_a_slow_consumer_gets_everything_in_one_piece() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo)) as engine:
            stream = engine.submit([prepare(engine, "a", logprobs=0)])
            await ended(engine)

            pieces = await stream.take()
            assert pieces is not None
            [(index, update)] = pieces
            assert (index, update.text, len(update.token_ids), len(update.logprobs or ())) == (0, "abcabcab", 8, 8)
            assert update.output is not None
            assert update.output.text == update.text
            assert await stream.take() is None

    run(test)


def test_whole_outputs_alone_can_be_had() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo)) as engine:
            stream = engine.submit([prepare(engine, "a"), prepare(engine, "b", max_tokens=3)], final_only=True)
            outputs = {index: update.output async for updates in stream for index, update in updates}

            assert {index: output and output.text for index, output in outputs.items()} == {0: "abcabcab", 1: "abc"}

    run(test)


@pytest.mark.parametrize("place", ["queued", "mid-prompt", "mid-decode"])
def test_closing_the_generator_frees_slot_and_blocks(place: str) -> None:
    async def test() -> None:
        gate = Gate()
        executor = ScriptedExecutor(echo, during=gate)
        async with running(executor, max_num_seqs=1, max_num_batched_tokens=8) as engine:
            first = engine.submit([prepare(engine, "other", max_tokens=2)]) if place == "queued" else None
            generator = engine.generate(prepare(engine, "a", "x" * 20, max_tokens=100))
            step = asyncio.ensure_future(anext(generator))
            await reached(gate)
            if place == "mid-decode":
                await asyncio.to_thread(gate.let_through, 5)  # three chunks and two tokens
                await step
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            await generator.aclose()
            num_plans = len(executor.plans)
            gate.open()
            await ended(engine)

            ran_on = [plan for plan in executor.plans[num_plans:] if plan.num_rows]
            assert len(ran_on) <= (1 if first is not None else 0)  # "other" has one more token to go
            pool = engine.engine.scheduler.kv.pool
            assert pool.num_free == engine.engine.scheduler.cache.num_blocks
            assert engine.engine.scheduler.num_running == engine.engine.scheduler.num_waiting == 0
            engine.engine.scheduler.check_invariants()

    run(test)


def test_an_abort_counts_from_the_outputs_of_the_step_in_progress_on() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            stream = engine.submit([prepare(engine, "a")])
            gate.allow(1)
            assert (await stream.take() or [])[0][1].text == "a"
            await reached(gate, 2)  # the second step is computed, its output not read

            engine.abort(stream.serials)
            gate.open()
            updates = [update async for pieces in stream for _, update in pieces]

            assert [(update.text, update.token_ids) for update in updates] == [("", ())]
            assert updates[0].output is not None
            assert (updates[0].output.finish_reason, updates[0].output.text) == ("abort", "a")

    run(test)


def test_duplicate_ids_are_refused_until_the_engine_has_let_go() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            again, other, twice = (prepare(engine, name) for name in "aba")
            stream = engine.submit([prepare(engine, "a", max_tokens=1)])
            await reached(gate)

            for prepared in ([again], [other, again], [other, other]):
                with pytest.raises(RequestRefused, match="is unfinished"):
                    engine.submit(prepared)
            assert engine.num_open == 1
            stream.close()
            with pytest.raises(RequestRefused, match="is unfinished"):
                engine.submit([again])
            gate.open()
            await ended(engine)

            assert [update.output.text async for update in engine.generate(twice) if update.output] == ["abcabcab"]

    run(test)


def test_a_failed_step_ends_its_requests_and_the_next_one_is_served() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step == 2:
            raise ValueError("out of memory")

    async def test() -> None:
        async with running(ScriptedExecutor(echo, before=fail)) as engine:
            ears = Ears()
            stream = engine.submit([prepare(engine, name) for name in "ab"], listener=ears)
            outputs = [update.output async for pieces in stream for _, update in pieces if update.output]

            assert {output.finish_reason for output in outputs} == {"error"}
            assert all(output.error and "out of memory" in output.error.message for output in outputs)
            assert ears.ends == {0: 1, 1: 1}
            assert [
                update.output.finish_reason async for update in engine.generate(prepare(engine, "c")) if update.output
            ]
            assert engine.error is None

    run(test)


def test_when_the_engine_dies_every_stream_ends_and_nothing_new_is_taken() -> None:
    async def test() -> None:
        gate = Gate()
        executor = ScriptedExecutor(echo, during=gate)
        async with running(executor, max_num_seqs=1) as engine:
            ears = Ears()
            streams = [engine.submit([prepare(engine, name)], listener=ears) for name in "abc"]
            late = prepare(engine, "late")
            gate.allow(1)
            await streams[0].take()
            engine.engine.scheduler.schedule = None  # type: ignore[assignment,method-assign]  # a bug of the scheduler
            gate.open()
            await asyncio.wait_for(engine.died.wait(), PATIENCE_S)

            for stream in streams:
                with pytest.raises(EngineDead, match="TypeError"):
                    while await stream.take() is not None:
                        pass
            assert ears.ends[0] == 3
            assert engine.num_open == 0
            with pytest.raises(EngineDead):
                engine.submit([late])

    run(test)


def test_first_tokens_and_ends_are_told_once_each() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo), max_num_seqs=2, num_blocks=12) as engine:
            ears = Ears()
            prepared = [prepare(engine, f"r{place}", "x" * 9, max_tokens=12 + place) for place in range(6)]
            stream = engine.submit(prepared, listener=ears)
            await settled(lambda: ears.firsts[0] == 1)
            stream.close()
            await ended(engine)

            assert ears.ends == {index: 1 for index in range(6)}
            assert set(ears.firsts.values()) <= {0, 1}

    run(test)


def test_a_first_token_whose_text_is_held_back_is_told_in_its_step() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo)) as engine:
            ears = Ears()
            seen: list[tuple[bool, str]] = []
            stream = engine.submit([prepare(engine, "a", stop=("abcX",))], listener=ears)
            await settled(lambda: ears.firsts[0] == 1)
            while (pieces := await stream.take()) is not None:
                seen += [(bool(ears.firsts[0]), update.text) for _, update in pieces]

            assert "".join(text for _, text in seen) == "abcabcab"

    run(test)


def test_a_deadline_ends_what_has_not_begun_and_nothing_else() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate), max_num_seqs=1) as engine:
            ears = Ears()
            begun = engine.submit([prepare(engine, "a")])
            queued = engine.submit([prepare(engine, "b"), prepare(engine, "c")], listener=ears)
            await reached(gate)
            engine.expire(begun.serials)
            engine.expire(queued.serials)
            gate.open()

            ends = [update.output async for pieces in queued for _, update in pieces if update.output]
            assert [output.error and output.error.kind for output in ends] == ["timeout", "timeout"]
            assert ears.ends == {0: 1, 1: 1}
            assert [update.output.text async for pieces in begun for _, update in pieces if update.output] == [
                "abcabcab"
            ]

    run(test)


def test_what_the_engine_refuses_in_its_thread_ends_like_the_rest() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo)) as engine:
            ears = Ears()
            prepared = prepare(engine, "a")
            async for _ in engine.generate(prepared):
                pass
            stream = engine.submit([prepared], listener=ears)
            [(_, update)] = (await stream.take()) or []

            assert update.output is not None
            assert (update.output.finish_reason, ears.ends) == ("refused", {0: 1})

    run(test)


def test_the_heartbeat_tells_busy_from_idle() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            await settled(lambda: not engine.heartbeat.busy)
            assert (engine.heartbeat.num_steps, engine.heartbeat.step_s) == (0, None)
            stream = engine.submit([prepare(engine, "a", max_tokens=2)])
            await reached(gate)
            stuck = engine.heartbeat

            assert stuck.busy
            assert engine.heartbeat is stuck  # no sign of life while the step lasts
            gate.open()
            async for _ in stream:
                pass
            await settled(lambda: not engine.heartbeat.busy)
            assert engine.heartbeat.num_steps == 2
            assert engine.heartbeat.step_s is not None
            assert engine.heartbeat.at_s >= stuck.at_s

    run(test)


def test_stopping_ends_open_streams() -> None:
    async def test() -> None:
        gate = Gate()
        engine = AsyncEngine(make_engine(ScriptedExecutor(echo, during=gate)))
        engine.start()
        stream = engine.submit([prepare(engine, "a", max_tokens=100)])
        await reached(gate)
        stopping = asyncio.ensure_future(engine.stop())
        await asyncio.sleep(0)
        gate.open()
        await stopping

        with pytest.raises(EngineDead, match="stopped"):
            while await stream.take() is not None:
                pass
        with pytest.raises(RuntimeError, match="closed"):
            prepare(engine, "b")

    run(test)


def test_waiting_has_an_end() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            stream = engine.submit([prepare(engine, "a")])
            assert await stream.take(timeout_s=0.001) == []
            gate.open()
            assert await stream.take(timeout_s=PATIENCE_S)

    run(test)


def test_failing_a_stream_reaches_its_consumer_at_once() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate)) as engine:
            stream = engine.submit([prepare(engine, "a")])
            taking: Awaitable[object] = asyncio.ensure_future(stream.take())
            await reached(gate)
            stream.fail(RuntimeError("the server is closing"))

            with pytest.raises(RuntimeError, match="closing"):
                await taking
            stream.close()
            gate.open()
            await ended(engine)

    run(test)


def test_many_requests_leave_nothing_behind() -> None:
    async def test() -> None:
        async with running(ScriptedExecutor(echo)) as engine:

            async def one(place: int) -> list[RequestUpdate]:
                generator = engine.generate(prepare(engine, f"r{place}", max_tokens=1 + place % 7))
                updates = []
                async for update in generator:
                    updates.append(update)
                    if place % 3 == 0:
                        break
                await generator.aclose()
                return updates

            await asyncio.gather(*(one(place) for place in range(200)))
            await ended(engine)

            worker = engine._worker
            assert (worker._live, worker._serial_of, worker._refused) == ({}, {}, [])
            assert worker._no_token_yet == worker._expired == engine._names == set()
            assert engine.engine.scheduler.kv.pool.num_free == make_scheduler().cache.num_blocks

    run(test)


def test_joined_updates_keep_the_places_of_special_tokens() -> None:
    parts = [
        RequestUpdate("a", "ab", (1, 2), specials=((1, "<x>"),)),
        RequestUpdate("a", "", (3,), specials=((0, "<y>"),)),
        RequestUpdate("a", "c", (4, 5), specials=((0, "<z>"), (1, "<x>"))),
    ]

    assert join_updates(parts).specials == ((1, "<x>"), (2, "<y>"), (2, "<z>"), (3, "<x>"))


def test_a_large_call_enters_by_and_by_beside_others_and_is_aborted_whole() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(ScriptedExecutor(echo, during=gate), max_num_seqs=1) as engine:
            first = engine.submit([prepare(engine, "first", max_tokens=30)])
            await reached(gate)
            many = engine.submit([prepare(engine, f"many{n}", max_tokens=1) for n in range(3 * MOST_ENTRIES)])
            late = engine.submit([prepare(engine, "late", max_tokens=1)])
            waiting = []
            for _ in range(4):
                await asyncio.to_thread(gate.let_through)
                waiting.append(engine.engine.scheduler.num_waiting)
                if len(waiting) == 2:
                    engine.abort(many.serials)  # a third of it has not entered yet
            gate.open()

            ends = {}
            for name, stream in {"first": first, "many": many, "late": late}.items():
                outputs = [update.output async for pieces in stream for _, update in pieces if update.output]
                ends[name] = Counter(output.outputs[0].finish_reason for output in outputs)
            assert ends == {"first": {"length": 1}, "many": {"abort": 3 * MOST_ENTRIES}, "late": {"length": 1}}
            assert waiting[:2] == [MOST_ENTRIES, 2 * MOST_ENTRIES]
            await ended(engine)

    run(test)
