"""Orders of one thread, steps of another, in every order: an abort or a deadline ends who was meant, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import SamplingParams
from headway.engine import worker as worker_module
from headway.engine.messages import Abort, Expire, StepMessage, Submit
from headway.engine.outputs import RequestOutput
from headway.engine.worker import EngineWorker
from tests.engine.builders import ScriptedExecutor, echo, make_engine
from tests.support.switching import Switching, two_switches

FILES = (worker_module.__file__,)


class Pair:
    """A worker whose turns are made by one function, and its client, which is another.

    Attributes:
        messages: what the worker told, in order.
        ends: serial -> final output.
    """

    def __init__(self, schedule: Sequence[int]) -> None:
        self.switching = Switching(FILES, schedule)
        self.engine = make_engine(ScriptedExecutor(echo), max_num_seqs=2)
        self.worker = EngineWorker(self.engine, self._post, lambda: 0.0)
        self.messages: list[StepMessage] = []
        self.ends: dict[int, RequestOutput] = {}

    def _post(self, message: Any) -> None:
        self.messages.append(message)
        for serial, update in message.updates:
            if update.output is not None:
                assert serial not in self.ends, f"{serial} ended twice"
                self.ends[serial] = update.output

    def run(self, client: Callable[[Pair], None]) -> Pair:
        """Let both run to their end."""
        self.switching.run(lambda: client(self), self._serve)
        self.engine.scheduler.check_invariants()
        worker = self.worker
        assert not self.engine.has_work
        assert not (worker._live or worker._serial_of or worker._no_token_yet or worker._expired or worker._refused)
        return self

    def _serve(self) -> None:
        while True:
            if self.engine.has_work or self.worker._early or not self.worker._inbox.empty():
                self.worker._turn()
            elif not self.switching.give_way() and self.worker._inbox.empty():
                return

    def submit(self, serial: int, name: str, max_tokens: int = 2) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.worker.order(Submit(((serial, self.engine.prepare([serial, 7], sampling, request_id=name)),)))

    def wait(self, serial: int) -> None:
        while serial not in self.ends:
            assert self.switching.give_way(), f"{serial} does not end"

    def tokens(self, serial: int, messages: Sequence[StepMessage]) -> int:
        """How many tokens these messages bring."""
        return sum(len(update.token_ids) for message in messages for mine, update in message.updates if mine == serial)


def late(order: Abort | Expire) -> Callable[[Pair], None]:
    """A client that orders the end of a request about when it ends anyway, and then uses its name again."""

    def client(pair: Pair) -> None:
        pair.submit(1, "a")
        pair.worker.order(order)
        num_messages = len(pair.messages)
        pair.wait(1)
        pair.submit(2, "a")
        pair.worker.order(order)
        pair.wait(2)
        late_messages = [m for m in pair.messages[num_messages:] if pair.tokens(1, [m])]
        assert isinstance(order, Expire) or len(late_messages) <= 1  # that of the step whose result was there already

    return client


@pytest.mark.parametrize("order", [Abort((1,)), Expire((1,))])
def test_no_order_that_comes_late_hits_the_next_request_of_that_name(order: Abort | Expire) -> None:
    first_ends = set()

    def run(schedule: Sequence[int]) -> Switching:
        pair = Pair(schedule).run(late(order))
        first, second = pair.ends[1], pair.ends[2]
        assert (second.finish_reason, second.outputs[0].token_ids) == ("length", (2, 7)), f"under {schedule}"
        assert pair.tokens(1, pair.messages) == len(first.outputs[0].token_ids)
        first_ends.add((first.finish_reason, len(first.outputs[0].token_ids)))
        return pair.switching

    num_schedules = sum(1 for _ in two_switches(run))

    assert num_schedules > 300
    assert {("abort", 0), ("length", 2)} <= first_ends  # some orders were in time, some were not


ORDERS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["abort", "expire", "wait"]), st.integers(0, 9)),
    ),
    max_size=14,
)


@given(ORDERS, st.lists(st.integers(1, 60), max_size=12))
@settings(max_examples=150, deadline=None)
def test_requests_end_by_their_own_cause_however_names_and_threads_take_turns(
    orders: list[tuple[str, Any]], schedule: list[int]
) -> None:
    submitted: list[str] = []
    meant: dict[str, set[int]] = {"abort": set(), "expire": set()}

    def client(pair: Pair) -> None:
        for kind, what in orders:
            serial = what % len(submitted) if submitted and kind != "submit" else 0
            if kind == "submit":
                if any(name == what and other not in pair.ends for other, name in enumerate(submitted)):
                    continue  # still in use; the registry of the event loop refuses it
                pair.submit(len(submitted), what, max_tokens=1 + len(submitted) % 3)
                submitted.append(what)
            elif not submitted:
                continue
            elif kind == "wait":
                pair.wait(serial)
            else:
                meant[kind].add(serial)
                pair.worker.order(Abort((serial,)) if kind == "abort" else Expire((serial,)))

    pair = Pair(schedule).run(client)

    assert pair.ends.keys() == set(range(len(submitted)))
    for serial, output in pair.ends.items():
        timed_out = output.error is not None and output.error.kind == "timeout"
        assert output.finish_reason in ("length", "abort")
        assert output.finish_reason == "length" or serial in meant["expire" if timed_out else "abort"]
        if output.finish_reason == "length":
            assert len(output.outputs[0].token_ids) == 1 + serial % 3
