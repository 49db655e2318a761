"""Runs a server in this process until it is told to end, and ends it in good order.

The first SIGTERM or SIGINT begins the drain: ready turns false, new calls get 503, open ones end by themselves or, once
their time is up, with an error. A second signal ends the wait. If the engine dies, the same happens without the wait,
and the exit code is 1, so that whatever started the process starts it again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from headway.config.server import ServerOptions
from headway.engine.async_engine import AsyncEngine
from headway.engine.engine import Engine
from headway.server.app import create_app
from headway.server.service import LAST_WORDS_S, Service
from headway.server.status_log import report_status

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Idle connections stay open for longer than balancers usually keep theirs (60 s), so that those close first."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class DrainingServer(uvicorn.Server):
    """uvicorn, but it goes on answering while it drains.

    Args:
        service: what it serves.
        say: called with where it listens, once it does.

    Attributes:
        exit_code: 0, or 1 if the engine died.
    """

    def __init__(self, service: Service, say: Callable[[str], None] = logger.info) -> None:
        options = service.options
        super().__init__(
            uvicorn.Config(
                create_app(service),
                host=options.host,
                port=options.port,
                lifespan="on",
                ws="none",
                server_header=False,
                access_log=options.access_log,
                log_level="info" if options.access_log else "warning",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(LAST_WORDS_S),
            )
        )
        self.exit_code = 0
        self._service = service
        self._say = say
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._tasks.append(self._loop.create_task(self._end_with_engine()))
        interval_s = self._service.options.status_interval
        if interval_s:
            self._tasks.append(self._loop.create_task(report_status(self._service, interval_s, self._say)))
        host = self._service.options.host
        self._say(f"listening on http://{f'[{host}]' if ':' in host else host}:{self.port}")

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Drain and end; the second call ends the wait. On the event loop."""
        if self._service.draining:
            self._service.hurry()
            return
        logger.warning("draining: %d calls are open", len(self._service.calls))
        self._service.begin_drain()
        self._tasks.append(asyncio.get_running_loop().create_task(self._drain()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        await self._service.drain(self._service.options.drain_timeout)
        self.should_exit = True

    async def _end_with_engine(self) -> None:
        await self._service.engine.died.wait()
        if self.should_exit:
            return
        self.exit_code = 1
        await self._service.drain(LAST_WORDS_S)
        self.should_exit = True


def serve(engine: Engine, options: ServerOptions, *, say: Callable[[str], None] = logger.info) -> int:
    """Serve until a signal comes or the engine dies.

    Args:
        engine: used by nobody else.
        options: of the server.
        say: called with one sentence for every limit that holds.

    Returns:
        The exit code for the process.
    """
    service = Service(AsyncEngine(engine), options)
    for sentence in describe(service):
        say(sentence)
    set_aside_what_is_there()
    server = DrainingServer(service, say)
    server.run()
    return server.exit_code


def set_aside_what_is_there() -> None:
    """Take everything that start-up made out of the garbage collector's sight.

    A full collection looks at every object, holding Python's lock: over the modules of torch alone that takes a tenth
    of a second, in which no stream gets a token. A large body, with its many objects, sets off several.
    """
    gc.collect()
    gc.freeze()


def describe(service: Service) -> tuple[str, ...]:
    """What holds for calls, one sentence each; the engine's own limits are in ``Engine.limits``."""
    options, admission = service.options, service.admission
    requests = _limit(admission.max_requests, "unfinished requests")
    tokens = _limit(admission.max_tokens, "prompt tokens in prefill")
    sentences = [
        f"model name: {', '.join(service.models)}",
        f"queue, for the whole server and all clients together: {requests}, {tokens}",
        f"a call: at most {options.max_body_mib:g} MiB, {options.max_prompts} prompts, n and best_of {options.max_n},"
        f" {options.max_sequences} generations, {options.max_logprobs} logprobs, {options.max_stop} stop strings",
        f"frozen after {options.stall_timeout:g} s in one step; drain takes at most {options.drain_timeout:g} s",
        f"API keys: {len(options.api_key)}" + (", prefixes shared within one key" if options.cache_isolation else "")
        if options.api_key
        else "API keys: none",
    ]
    if not options.api_key and options.host not in LOOPBACK:
        sentences.append(f"warning: whoever reaches {options.host} can use this server; --api-key asks for a key")
    return tuple(sentences)


def _limit(limit: int | None, what: str) -> str:
    return f"any number of {what}" if limit is None else f"at most {limit:,} {what}"
