"""The engine's own thread: takes orders between steps, does steps while there is work, tells one message per step.

Nothing here waits for whoever listens. Only :meth:`EngineWorker.order` may be called from other threads; the
heartbeat may be read by them.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from headway.core.request import Request, RequestRefused, Status
from headway.engine.engine import Engine, Prepared
from headway.engine.llm import refused_output
from headway.engine.loop import Clock, StepReport
from headway.engine.messages import Abort, Death, Expire, Heartbeat, Look, Order, StepMessage, Stop, Submit
from headway.engine.monitor import EngineSnapshot, Monitor
from headway.engine.outputs import CompletionOutput, RequestError, RequestOutput, RequestUpdate

logger = logging.getLogger(__name__)

MOST_ENTRIES = 64
"""Requests that enter before one step, while others are there: to enter one takes about a quarter of a millisecond."""

TIMEOUT = "timeout"
"""Kind of the error of a request that had not begun by its deadline."""


class EngineWorker:
    """Runs an engine in a thread of its own.

    Args:
        engine: used by nobody else from now on, but for :meth:`Engine.prepare`.
        post: takes messages; called in the engine's thread, must return at once.
        clock: of the heartbeat.
    """

    def __init__(
        self, engine: Engine, post: Callable[[StepMessage | EngineSnapshot | Death], None], clock: Clock
    ) -> None:
        self._engine = engine
        self._post = post
        self._clock = clock
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._early: deque[Order] = deque()
        """Orders that were taken out of the inbox in the middle of a step, to be carried out after it."""
        self._live: dict[int, Request] = {}
        """By serial."""
        self._serial_of: dict[int, int] = {}
        """handle -> serial of live requests."""
        self._no_token_yet: set[int] = set()
        """Handles of live requests whose first token was not sampled yet."""
        self._expired: set[int] = set()
        """Serials of live requests that are being ended because of their deadline."""
        self._refused: list[tuple[int, RequestUpdate]] = []
        self._monitor: Monitor | None = Monitor(engine)
        self.last_look = self._monitor.snapshot(clock())
        self.heartbeat = Heartbeat(clock(), False, 0, None)
        # A daemon: a thread that is stuck in a step must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; ``False`` if it has not by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def order(self, order: Order) -> None:
        """Have something done before the next step. Aborts count from the outputs of the step in progress on.

        One queue says what came before what: there is nothing else that two threads write.
        """
        self._inbox.put(order)

    # --- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.critical("the engine died", exc_info=error)
            self._post(Death(error))
        finally:
            self._engine.close()

    def _turn(self) -> bool:
        """Carry out orders, then do a step if there is work; ``False`` if it is time to stop."""
        orders = self._orders(self._engine.pause_s if self._engine.has_work else None)
        if not self.heartbeat.busy:
            self._beat(busy=True)
        if not self._carry_out_all(orders):
            return False
        if self._engine.has_work:
            began_s = self._clock()
            report = self._engine.advance(self._late_aborts)
            self._watch(report, self._clock() - began_s)
            self._tell(report)
            beat = self.heartbeat
            now = self._clock()
            self.heartbeat = Heartbeat(now, True, beat.num_steps + 1, now)
        elif self._refused:
            self._tell(None)
        return True

    def _orders(self, wait_s: float | None) -> list[Order]:
        """What came in since the last turn; if nothing did, wait for ``wait_s``, or for as long as it takes."""
        self._take_in()
        if not self._early and wait_s != 0:
            self._beat(busy=False)
            with suppress(queue.Empty):
                self._early.append(self._inbox.get(timeout=wait_s))
            self._take_in()
        orders = list(self._early)
        self._early.clear()
        return orders

    def _take_in(self) -> None:
        """Empty the inbox."""
        with suppress(queue.Empty):
            while True:
                self._early.append(self._inbox.get_nowait())

    def _late_aborts(self) -> list[int]:
        """Handles of live requests that were aborted while the step ran. The orders stay in their place: what was
        submitted before an abort and has not entered yet is ended when that is carried out."""
        self._take_in()
        aborts = (order for order in self._early if isinstance(order, Abort))
        return [self._live[serial].handle for order in aborts for serial in order.serials if serial in self._live]

    def _carry_out_all(self, orders: Sequence[Order]) -> bool:
        """Carry out orders in turn; ``False`` if it is time to stop.

        While others are there, no more than ``MOST_ENTRIES`` requests enter: the rest, and what came behind them, are
        for the next turn.
        """
        room = MOST_ENTRIES if self._engine.has_work else sys.maxsize
        for place, order in enumerate(orders):
            if isinstance(order, Stop):
                return False
            if isinstance(order, Submit) and len(order.entries) > room:
                self._carry_out(Submit(order.entries[:room]))
                self._early.extendleft([*reversed(orders[place + 1 :]), Submit(order.entries[room:])])
                return True
            if isinstance(order, Submit):
                room -= len(order.entries)
            self._carry_out(order)
        return True

    def _carry_out(self, order: Submit | Abort | Expire | Look) -> None:
        if isinstance(order, Submit):
            for serial, prepared in order.entries:
                self._add(serial, prepared)
        elif isinstance(order, Abort):
            for serial in order.serials:
                if serial in self._live:
                    self._engine.abort(self._live[serial].handle)
        elif isinstance(order, Expire):
            self._expire(order.serials)
        else:
            self._look()

    def _add(self, serial: int, prepared: Prepared) -> None:
        request = prepared.request
        try:
            handle = self._engine.add(prepared)
        except RequestRefused as refusal:
            self._refuse(serial, refused_output(request.request_id, refusal))
            return
        except Exception as error:
            logger.exception("request %r could not be added", request.request_id)
            failure = RequestError("error", f"it could not be added: {type(error).__name__}: {error}")
            output = RequestOutput(request.request_id, None, (), (CompletionOutput("", (), "error"),), error=failure)
            self._refuse(serial, output)
            return
        self._live[serial] = request
        self._serial_of[handle] = serial
        self._no_token_yet.add(handle)

    def _refuse(self, serial: int, output: RequestOutput) -> None:
        self._refused.append((serial, RequestUpdate(output.request_id, "", (), None, output)))

    def _expire(self, serials: Sequence[int]) -> None:
        requests = [self._live.get(serial) for serial in serials]
        if all(request is not None and request.status is Status.WAITING for request in requests):
            for serial in serials:
                self._expired.add(serial)
                self._engine.abort(self._live[serial].handle)

    def _watch(self, report: StepReport, step_s: float) -> None:
        """Let the monitor see a step. Nobody's answer depends on it, so its errors end it and nothing else."""
        if self._monitor is not None:
            try:
                self._monitor.observe(report, step_s)
            except Exception:
                logger.exception("the monitor failed; there are no more snapshots")
                self._monitor = None

    def _look(self) -> None:
        """Post a snapshot; the last one again if none can be made, so that nobody waits in vain."""
        if self._monitor is not None:
            try:
                self.last_look = self._monitor.snapshot(self._clock())
            except Exception:
                logger.exception("a snapshot could not be made")
        self._post(self.last_look)

    def _tell(self, report: StepReport | None) -> None:
        """Post what happened, if it concerns anybody."""
        first: list[int] = []
        if self._no_token_yet and report is not None and report.output is not None:
            handles = [handle for handle in report.output.handles.tolist() if handle in self._no_token_yet]
            first = [self._serial_of[handle] for handle in handles]
            self._no_token_yet.difference_update(handles)
        updates, self._refused = self._refused, []
        for update in report.updates if report is not None else ():
            serial = self._serial_of[update.handle]
            updates.append((serial, update if update.output is None else self._last(serial, update, update.output)))
        if first or updates:
            self._post(StepMessage(tuple(first), tuple(updates)))

    def _last(self, serial: int, update: RequestUpdate, output: RequestOutput) -> RequestUpdate:
        """Forget a request that ended; say so if it was its deadline that ended it."""
        del self._live[serial], self._serial_of[update.handle]
        self._no_token_yet.discard(update.handle)
        if serial not in self._expired:
            return update
        self._expired.remove(serial)
        error = RequestError(TIMEOUT, "the request had not begun by its deadline")
        return dataclasses.replace(update, output=dataclasses.replace(output, error=error))

    def _beat(self, *, busy: bool) -> None:
        self.heartbeat = dataclasses.replace(self.heartbeat, at_s=self._clock(), busy=busy)
