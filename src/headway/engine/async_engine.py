"""The engine for an event loop: requests go in, streams of updates come out, and the steps run in another thread.

Everything here is called on one event loop, except that messages arrive by ``call_soon_threadsafe``, one per step.

Memory: what a consumer has not taken yet is kept, at most the output of its own request, and is joined into one
update when it is taken. A request that nobody waits for any more keeps its id until the engine has let go of it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.request import RequestRefused
from headway.engine.engine import Engine, Prepared
from headway.engine.loop import Clock
from headway.engine.messages import Abort, Death, Expire, Heartbeat, Look, StepMessage, Stop, Submit
from headway.engine.monitor import EngineSnapshot
from headway.engine.outputs import RequestUpdate
from headway.engine.worker import EngineWorker

STOP_TIMEOUT_S = 5.0
"""A step in progress has this long to end when the engine is stopped; then its thread is left behind."""


SNAPSHOT_AGE_S, SNAPSHOT_TIMEOUT_S = 0.25, 1.0
"""How old a snapshot may be, and how long to wait for a new one."""


class EngineDead(RuntimeError):
    """The engine has stopped for good; no request can be served any more."""


class Listener(Protocol):
    """Who counts requests. Each is called once per request, on the event loop, whoever consumes the updates."""

    def first_token(self, index: int) -> None:
        """The first token of request ``index`` of the submission was sampled. Not called if there never was one."""

    def end(self, index: int) -> None:
        """The engine has let go of request ``index``."""


class _Deaf:
    def first_token(self, index: int) -> None:
        """Nobody counts."""

    def end(self, index: int) -> None:
        """Nobody counts."""


class UpdateStream:
    """What comes out of one submission. Iterate, or call :meth:`take`; then :meth:`close`, whatever happened.

    Args:
        serials: of the submission's requests, in order.
        final_only: keep only the last update of each request, which has its whole output.
        on_close: called once, with the requests that have not ended.
    """

    def __init__(
        self, serials: Sequence[int], *, final_only: bool, on_close: Callable[[tuple[int, ...]], None]
    ) -> None:
        self.serials = tuple(serials)
        self._final_only = final_only
        self._on_close: Callable[[tuple[int, ...]], None] | None = on_close
        self._unended = dict(enumerate(self.serials))
        self._pending: dict[int, list[RequestUpdate]] = {}
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, RequestUpdate]] | None:
        """Wait for something new.

        Args:
            timeout_s: how long to wait at most.

        Returns:
            Pairs of a request's index and what is new of it, each request once. Empty if time ran out, ``None`` if
            all requests have ended and everything was taken.

        Raises:
            EngineDead: no more will come. (Or what :meth:`fail` was given.)
        """
        if not self._pending and self._unended and self._error is None:
            await self._wait(timeout_s)
        if self._pending:
            pending, self._pending = self._pending, {}
            return [(index, join_updates(parts)) for index, parts in pending.items()]
        if self._error is not None:
            raise self._error
        return [] if self._unended else None

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, waiter) if timeout_s is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, RequestUpdate]]]:
        while (updates := await self.take()) is not None:
            yield updates

    def put(self, index: int, update: RequestUpdate) -> None:
        """Something new came; called by the engine."""
        if update.output is not None:
            del self._unended[index]
        elif self._final_only:
            return
        if self._on_close is not None:
            self._pending.setdefault(index, []).append(update)
            self._notify()

    def fail(self, error: Exception) -> None:
        """Have the consumer get this error, after what it has not taken yet."""
        if self._error is None:
            self._error = error
            self._notify()

    def close(self) -> None:
        """Nobody will take anything any more: what has not ended is aborted. More calls do nothing."""
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            self._pending.clear()
            on_close(tuple(self._unended.values()))

    def _notify(self) -> None:
        if self._waiter is not None:
            _wake(self._waiter)


@dataclass(frozen=True)
class _Entry:
    """A request that the engine has not let go of, and who waits for it."""

    name: str
    stream: UpdateStream
    index: int
    listener: Listener


class AsyncEngine:
    """One engine on one event loop.

    Args:
        engine: used by nobody else from now on, but for :meth:`Engine.prepare` and looking.
        clock: of the heartbeat, in seconds.
    """

    def __init__(self, engine: Engine, *, clock: Clock = time.monotonic) -> None:
        self.engine = engine
        self._clock = clock
        self._worker = EngineWorker(engine, self._post, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serials = itertools.count(1)
        self._open: dict[int, _Entry] = {}
        """By serial."""
        self._names: set[str] = set()
        """Of open requests."""
        self.snapshot_age_s = SNAPSHOT_AGE_S
        self._seen = self._worker.last_look
        self._look: asyncio.Future[None] | None = None
        self.died = asyncio.Event()
        self.error: Exception | None = None
        """Why no request can be served, once that is so."""

    def start(self) -> None:
        """Begin; called once, on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def stop(self) -> None:
        """Do no more steps. Open streams get :class:`EngineDead`."""
        self._worker.order(Stop())
        if self._loop is not None:
            await self._loop.run_in_executor(None, self._worker.join, STOP_TIMEOUT_S)
        self._end_all(EngineDead("the engine was stopped"))

    @property
    def heartbeat(self) -> Heartbeat:
        """The last sign of life of the engine's thread. Reading it needs nothing of that thread."""
        return self._worker.heartbeat

    def now(self) -> float:
        """The time on the heartbeat's clock."""
        return self._clock()

    @property
    def num_open(self) -> int:
        """Requests that the engine has not let go of."""
        return len(self._open)

    def submit(
        self, prepared: Sequence[Prepared], *, final_only: bool = False, listener: Listener | None = None
    ) -> UpdateStream:
        """Enter requests, all or none.

        Args:
            prepared: made by :meth:`Engine.prepare`.
            final_only: whether only whole outputs are wanted.
            listener: told about first tokens and ends, by index.

        Raises:
            RequestRefused: one of the ids belongs to a request that the engine has not let go of.
            EngineDead: there is no engine any more.
        """
        if self.error is not None:
            raise EngineDead(str(self.error))
        names = [entry.request.request_id for entry in prepared]
        for place, name in enumerate(names):
            if name in self._names or name in names[:place]:
                raise RequestRefused("request_id", name, None, f"a request named {name!r} is unfinished")
        serials = [next(self._serials) for _ in prepared]
        stream = UpdateStream(serials, final_only=final_only, on_close=self.abort)
        listener = listener if listener is not None else _Deaf()
        self._names.update(names)
        for index, (serial, name) in enumerate(zip(serials, names, strict=True)):
            self._open[serial] = _Entry(name, stream, index, listener)
        self._worker.order(Submit(tuple(zip(serials, prepared, strict=True))))
        return stream

    async def generate(self, prepared: Prepared) -> AsyncGenerator[RequestUpdate, None]:
        """Run one request; closing the generator aborts it. Raises what :meth:`submit` and its stream raise."""
        stream = self.submit([prepared])
        try:
            async for updates in stream:
                for _, update in updates:
                    yield update
        finally:
            stream.close()

    def abort(self, serials: Sequence[int]) -> None:
        """End requests of a stream; ended ones are ignored. Their last updates come as for any other end."""
        unended = tuple(serial for serial in serials if serial in self._open)
        if unended:
            self._worker.order(Abort(unended))

    def expire(self, serials: Sequence[int]) -> None:
        """End requests of a stream with an error of kind "timeout" if none of them has begun."""
        self._worker.order(Expire(tuple(serials)))

    async def snapshot(
        self, *, max_age_s: float | None = None, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> EngineSnapshot:
        """Look into the engine.

        Args:
            max_age_s: a snapshot that is no older is good enough: however many ask, few are made. ``snapshot_age_s``
                if not given.
            timeout_s: if the engine has not answered by then, because a step takes long or it is stuck or dead, the
                last snapshot has to do. ``taken_s`` says how old it is.
        """
        if max_age_s is None:
            max_age_s = self.snapshot_age_s
        if self.error is not None or self.now() - self._seen.taken_s <= max_age_s:
            return self._seen
        if self._look is None:
            self._look = asyncio.get_running_loop().create_future()
            self._worker.order(Look())
        await asyncio.wait([self._look], timeout=timeout_s)
        return self._seen

    # --- messages ------------------------------------------------------------------------------------------

    def _post(self, message: StepMessage | EngineSnapshot | Death) -> None:
        """Called in the engine's thread."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._on_message, message)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _on_message(self, message: StepMessage | EngineSnapshot | Death) -> None:
        if isinstance(message, EngineSnapshot):
            self._seen = message
            self._end_look()
            return
        if isinstance(message, Death):
            error = EngineDead(f"the engine died: {type(message.error).__name__}: {message.error}")
            self._end_all(error)
            return
        for serial in message.first:
            if serial in self._open:
                entry = self._open[serial]
                entry.listener.first_token(entry.index)
        for serial, update in message.updates:
            if serial in self._open:
                self._deliver(serial, update)

    def _deliver(self, serial: int, update: RequestUpdate) -> None:
        entry = self._open[serial]
        if update.output is not None:
            del self._open[serial]
            self._names.remove(entry.name)
            entry.listener.end(entry.index)
        entry.stream.put(entry.index, update)

    def _end_look(self) -> None:
        """Whoever waits for a snapshot need not any more."""
        if self._look is not None:
            _wake(self._look)
            self._look = None

    def _end_all(self, error: EngineDead) -> None:
        """There is no engine any more: tell everybody."""
        if self.error is None:
            self.error = error
            self.died.set()
        self._end_look()
        entries, self._open = self._open, {}
        self._names.clear()
        for entry in entries.values():
            entry.listener.end(entry.index)
            entry.stream.fail(error)


def join_updates(parts: Sequence[RequestUpdate]) -> RequestUpdate:
    """Successive updates of one request as one."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    logprobs = None
    if last.logprobs is not None:
        logprobs = tuple(entry for part in parts for entry in part.logprobs or ())
    starts = itertools.accumulate((len(part.text) for part in parts), initial=0)
    specials = [
        (start + place, text) for start, part in zip(starts, parts, strict=False) for place, text in part.specials
    ]
    return RequestUpdate(
        last.request_id,
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.token_ids),
        logprobs,
        last.output,
        tuple(specials),
        last.handle,
    )


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
