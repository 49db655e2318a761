"""The engine's own thread: takes orders between steps, does steps while there is work, tells one message per step.

Nothing here waits for whoever listens. Only :meth:`EngineWorker.order` may be called from other threads; the
heartbeat may be read by them.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from headway.core.request import Request, RequestRefused, Status
from headway.engine.engine import Engine, Prepared
from headway.engine.llm import refused_output
from headway.engine.loop import Clock, StepReport
from headway.engine.messages import Abort, Death, Expire, Heartbeat, Look, Order, StepMessage, Stop, Submit
from headway.engine.monitor import EngineSnapshot, Monitor
from headway.engine.outputs import CompletionOutput, RequestError, RequestOutput, RequestUpdate

logger = logging.getLogger(__name__)

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
        self._live: dict[str, Request] = {}
        self._no_token_yet: dict[int, str] = {}
        """handle -> id of live requests whose first token was not sampled yet."""
        self._expired: dict[str, None] = {}
        self._refused: list[RequestUpdate] = []
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
        """Have something done before the next step. Aborts count from the outputs of the step in progress on."""
        self._inbox.put(order)
        if isinstance(order, Abort):
            for request_id in order.request_ids:
                self._engine.loop.abort(request_id)

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
        idle = not self._engine.has_work
        if idle:
            self._beat(busy=False)
        for order in self._orders(wait=idle):
            if isinstance(order, Stop):
                return False
            self._carry_out(order)
        if self._engine.has_work:
            began_s = self._clock()
            report = self._engine.advance()
            self._watch(report, self._clock() - began_s)
            self._tell(report)
            beat = self.heartbeat
            now = self._clock()
            self.heartbeat = Heartbeat(now, True, beat.num_steps + 1, now)
        elif self._refused:
            self._tell(None)
        return True

    def _orders(self, *, wait: bool) -> list[Order]:
        """What came in since the last turn."""
        orders = []
        if wait:
            orders.append(self._inbox.get())
            self._beat(busy=True)
        try:
            while True:
                orders.append(self._inbox.get_nowait())
        except queue.Empty:
            return orders

    def _carry_out(self, order: Submit | Abort | Expire | Look) -> None:
        if isinstance(order, Submit):
            for prepared in order.prepared:
                self._add(prepared)
        elif isinstance(order, Abort):
            for request_id in order.request_ids:
                self._engine.abort(request_id)
        elif isinstance(order, Expire):
            self._expire(order.request_ids)
        else:
            self._look()

    def _add(self, prepared: Prepared) -> None:
        request = prepared.request
        try:
            self._engine.add(prepared)
        except RequestRefused as refusal:
            self._refused.append(_refused(request.request_id, refused_output(request.request_id, refusal)))
            return
        except Exception as error:
            logger.exception("request %r could not be added", request.request_id)
            failure = RequestError("error", f"it could not be added: {type(error).__name__}: {error}")
            output = RequestOutput(request.request_id, None, (), (CompletionOutput("", (), "error"),), error=failure)
            self._refused.append(_refused(request.request_id, output))
            return
        self._live[request.request_id] = request
        self._no_token_yet[request.handle] = request.request_id

    def _expire(self, request_ids: Sequence[str]) -> None:
        waiting = [name for name in request_ids if name in self._live and self._live[name].status is Status.WAITING]
        if len(waiting) == len(request_ids):
            for name in waiting:
                self._expired[name] = None
                self._engine.abort(name)

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
        first: list[str] = []
        if self._no_token_yet and report is not None and report.output is not None:
            for handle in report.output.handles.tolist():
                name = self._no_token_yet.pop(handle, None)
                if name is not None:
                    first.append(name)
        updates, self._refused = self._refused, []
        for update in report.updates if report is not None else ():
            updates.append(self._last(update, update.output) if update.output is not None else update)
        if first or updates:
            self._post(StepMessage(tuple(first), tuple(updates)))

    def _last(self, update: RequestUpdate, output: RequestOutput) -> RequestUpdate:
        """Forget a request that ended; say so if it was its deadline that ended it."""
        name = update.request_id
        self._no_token_yet.pop(self._live.pop(name).handle, None)
        if name not in self._expired:
            return update
        del self._expired[name]
        error = RequestError(TIMEOUT, "the request had not begun by its deadline")
        return dataclasses.replace(update, output=dataclasses.replace(output, error=error))

    def _beat(self, *, busy: bool) -> None:
        self.heartbeat = dataclasses.replace(self.heartbeat, at_s=self._clock(), busy=busy)


def _refused(request_id: str, output: RequestOutput) -> RequestUpdate:
    return RequestUpdate(request_id, "", (), None, output)
