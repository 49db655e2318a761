"""What the routes share: the engine, who is let in, which calls are open, and how all of it comes to an end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from headway.config.combinations import server_options
from headway.config.server import ServerOptions
from headway.engine.async_engine import AsyncEngine
from headway.engine.histogram import FEW, Histogram
from headway.server import errors
from headway.server.admission import Admission, TurnedAway
from headway.server.call import Call
from headway.server.compiling import Compiling
from headway.server.errors import ApiError
from headway.server.health import Health, judge
from headway.server.offload import Offload
from headway.server.reasoning import find_reasoning
from headway.server.spec import CallSpec
from headway.server.tokenising import Tokenising
from headway.server.tools.choosing import ChatSupport
from headway.server.tools.dialects import find_dialect, knows_tools

logger = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""Calls that were ended have this long to send their last event."""


class Service:
    """One server's state, used on its event loop only.

    Args:
        engine: not started yet.
        options: of the server.

    Attributes:
        created: when the server began, in seconds since 1970.
        chats: what the model can do in chats.
        models: names that clients may use; the first one is in the answers.
        offload: where large bodies are worked on.
        calls: open ones, by request id.
        draining: whether the server is about to end and takes no more calls.
        asked_n: choices that calls asked for, of calls that were let in.
    """

    def __init__(self, engine: AsyncEngine, options: ServerOptions) -> None:
        self.engine = engine
        inner = engine.engine
        self.options = server_options(options, inner.scheduler.config, inner.scheduler.cache)
        scheduler = inner.scheduler.config
        own_name = inner.tokenizer.name if inner.tokenizer is not None else "headway"
        self.created = int(time.time())
        self.models: Sequence[str] = options.served_model_name or (own_name,)
        self.max_model_len = scheduler.max_model_len
        self.admission = Admission(scheduler.max_num_queued_reqs, scheduler.max_num_queued_tokens)
        self.tokenising = Tokenising(inner.tokenizer, scheduler.max_model_len)
        self.offload = Offload()
        template = inner.tokenizer.chat_template if inner.tokenizer is not None else ""
        self.chats = ChatSupport(
            knows_tools(template),
            find_dialect(template, options.tool_call_parser),
            self.tokenising.special_ids,
            find_reasoning(template, options.reasoning_parser),
        )
        self._compiling = Compiling(inner.compile_form, options.form_timeout)
        self.calls: dict[str, Call] = {}
        self.draining = False
        self.asked_n = Histogram(FEW)
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._hurried = asyncio.Event()

    def start(self) -> None:
        """Begin."""
        self.engine.start()
        self._compiling.warm_up()

    async def stop(self) -> None:
        """The end."""
        self.draining = True
        self.tokenising.close()
        self.offload.close()
        self._compiling.close()
        await self.engine.stop()

    # --- calls ---------------------------------------------------------------------------------------------

    def model(self, name: str | None) -> str:
        """The model's name for an answer.

        Raises:
            ApiError: there is no model of this name.
        """
        if name is None:
            return self.models[0]
        if name not in self.models:
            served = ", ".join(repr(each) for each in self.models)
            raise ApiError(
                404,
                f"there is no model {errors.shown(name)}; served here: {served}",
                code="model_not_found",
                param="model",
            )
        return name

    def open(self, spec: CallSpec, request_id: str, owner: str) -> Call:
        """Let a call in and count it; nothing is done for it yet.

        Args:
            spec: what it asks for.
            request_id: its name.
            owner: of the API key, if there are keys.

        Raises:
            ApiError: it is not let in.
        """
        if self.engine.error is not None:
            raise errors.engine_dead(str(self.engine.error))
        if self.draining:
            raise errors.draining()
        if request_id in self.calls:
            raise errors.invalid(
                f"a request named {request_id!r} is unfinished", "X-Request-Id", "duplicate_request_id"
            )
        try:
            ticket = self.admission.admit(spec.num_requests, spec.fewest_tokens)
        except TurnedAway as error:
            raise errors.turned_away(error) from error
        self.asked_n.observe(spec.n)
        salt = f"{owner}/{spec.cache_salt}" if self.options.cache_isolation else spec.cache_salt
        call = self.calls[request_id] = Call(
            request_id,
            owner,
            spec,
            salt,
            ticket=ticket,
            engine=self.engine,
            tokenising=self.tokenising,
            compiling=self._compiling,
            on_close=lambda: self._forget(request_id),
        )
        self._all_closed.clear()
        return call

    def abort(self, request_id: str, owner: str) -> None:
        """End a call as its client asked.

        Raises:
            ApiError: there is no such call, or it is another key's.
        """
        call = self.calls.get(request_id)
        if call is None or call.owner != owner:
            raise ApiError(404, f"there is no unfinished request {errors.shown(request_id)}", code="request_not_found")
        call.abort()

    def _forget(self, request_id: str) -> None:
        del self.calls[request_id]
        if not self.calls:
            self._all_closed.set()

    # --- health and the end --------------------------------------------------------------------------------

    def health(self) -> Health:
        """Whether the engine lives and calls are taken."""
        return judge(
            self.engine.heartbeat,
            self.engine.now(),
            stall_timeout_s=self.options.stall_timeout,
            dead=self.engine.error is not None,
            draining=self.draining,
        )

    def begin_drain(self) -> None:
        """Take no more calls from now on."""
        self.draining = True

    def hurry(self) -> None:
        """Do not wait for open calls any longer."""
        self._hurried.set()

    async def drain(self, timeout_s: float) -> bool:
        """Take no more calls, let the open ones end, and end those that have not after ``timeout_s``.

        Returns:
            Whether all ended by themselves.
        """
        self.begin_drain()
        if await self._closed_within(timeout_s):
            return True
        logger.warning("ending %d calls that are open after %g seconds of drain", len(self.calls), timeout_s)
        for call in list(self.calls.values()):
            call.fail(errors.draining())
        self._hurried.clear()
        await self._closed_within(LAST_WORDS_S)
        return False

    async def _closed_within(self, timeout_s: float) -> bool:
        """Wait until no call is open, time runs out, or somebody hurries; whether no call is open."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._all_closed, self._hurried)]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return not self.calls
