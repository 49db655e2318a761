"""Calls of several threads on one engine: whoever waits for an output does the next step, one thread at a time.

A step moves the requests of all calls, and every call gets what is its own, whoever did the step. Nothing is held while
nobody waits: a stream that is left open stops no other call, and its updates are kept until they are read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from headway.engine.engine import Engine, Prepared
from headway.engine.outputs import RequestUpdate

IndexedUpdate = tuple[int, RequestUpdate]
"""The index of a prompt in its call, and what is new of it."""


class FairLock:
    """A lock that goes to those who wait for it before it goes back to whoever had it last.

    A plain lock may not: a thread that does step after step would take it again before anybody else has woken up.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def try_acquire(self) -> bool:
        """Take it if it is free; never waits."""
        return self._lock.acquire(blocking=False)


@dataclass(eq=False)
class Call:
    """The requests of one call.

    Attributes:
        prepared: by index, to be entered when the first update is asked for.
        updates: arrived and not yet taken; refusals are there from the beginning.
        unended: handle -> index, of requests in the engine whose last update has not arrived.
        entered: whether the prepared ones are in the engine.
        left: whether nobody wants anything any more.
    """

    prepared: dict[int, Prepared] = field(default_factory=dict)
    updates: deque[IndexedUpdate] = field(default_factory=deque)
    unended: dict[int, int] = field(default_factory=dict)
    entered: bool = False
    left: bool = False

    @property
    def is_over(self) -> bool:
        """Whether all updates there will ever be have arrived."""
        return self.entered and not self.unended


class CallStream(Iterator[IndexedUpdate]):
    """What comes out of one call. May be iterated by one thread and closed by another; ends at once if it is.

    A stream that is dropped is as good as closed: its requests end with the next step of the engine at the latest.
    """

    def __init__(self, turns: Turns, call: Call) -> None:
        self._turns = turns
        self._call = call

    def __next__(self) -> IndexedUpdate:
        try:
            update = self._turns.next(self._call)
        except BaseException:
            self.close()
            raise
        if update is None:
            raise StopIteration
        return update

    def close(self) -> None:
        """Abort what has not ended; more calls do nothing."""
        self._turns.leave(self._call)

    def __del__(self) -> None:
        self._turns.drop(self._call)


class Turns:
    """Lets threads share an engine.

    The engine, this object's tables and a call's ``unended`` are changed under the lock only; ``updates`` need none.

    Args:
        engine: moved by nobody else.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = FairLock()
        self._calls: dict[int, Call] = {}
        """handle -> the call that waits for it."""
        self._dropped: deque[Call] = deque()
        """Left by their callers, with requests that are still in the engine."""
        self._num_changes = 0
        self._changed = threading.Condition()

    def next(self, call: Call) -> IndexedUpdate | None:
        """Move the engine until there is something new of a call; ``None`` at its end.

        Raises:
            EngineStalled, RuntimeError: see :meth:`Engine.advance`.
        """
        while not call.left:
            is_over = call.is_over  # read before the updates, since the last of them arrives first
            with suppress(IndexError):
                return call.updates.popleft()
            if is_over:
                return None
            if call.entered:
                self._move(call)
            else:
                self._enter(call)
        return None

    def leave(self, call: Call) -> None:
        """Abort what has not ended of a call, and have whoever waits for it return."""
        if call.left or call.is_over:
            call.left = True
            return
        call.left = True
        self._dropped.append(call)
        with self._lock:
            self._end_dropped()
        self._tell()

    def drop(self, call: Call) -> None:
        """The same for a finalizer, which may run anywhere, also in a thread that has the lock: it never waits."""
        if call.left or call.is_over:
            return
        call.left = True
        self._dropped.append(call)
        if self._lock.try_acquire():
            try:
                self._end_dropped()
            finally:
                self._lock.__exit__()

    def close(self) -> None:
        """Close the engine; calls in progress get a ``RuntimeError``."""
        with self._lock:
            self._engine.close()
        self._tell()

    # --- with the lock ---------------------------------------------------------------------------------------

    def _enter(self, call: Call) -> None:
        with self._lock:
            if call.entered or call.left:
                return
            for index, prepared in call.prepared.items():
                handle = self._engine.add(prepared)
                call.unended[handle] = index
                self._calls[handle] = call
            call.entered = True
        self._tell()

    def _move(self, call: Call) -> None:
        """Do a step, unless another thread brought what the call waits for; then rest as long as the engine does."""
        with self._lock:
            self._end_dropped()
            if call.updates or call.left or call.is_over:
                return
            num_changes = self._num_changes + self._step()
            pause_s = self._engine.pause_s
        if pause_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._num_changes != num_changes, pause_s)

    def _step(self) -> bool:
        """One step of the engine; every update goes to the call that waits for it. Whether there were any."""
        if not self._engine.has_work:
            raise RuntimeError("the engine has nothing to do, though requests of a call have not ended")
        updates = self._engine.advance().updates
        for update in updates:
            call = self._calls.get(update.handle)
            if call is None:
                continue
            call.updates.append((call.unended[update.handle], update))
            if update.output is not None:
                del self._calls[update.handle], call.unended[update.handle]
        if updates:
            self._tell()
        return bool(updates)

    def _end_dropped(self) -> None:
        while self._dropped:
            call = self._dropped.popleft()
            for handle in call.unended:
                del self._calls[handle]
                self._engine.abort(handle)
            call.unended.clear()

    def _tell(self) -> None:
        """Wake those that rest: something has changed."""
        with self._changed:
            self._num_changes += 1
            self._changed.notify_all()
