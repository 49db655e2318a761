"""A real server on a real port, over an engine without a model, and ways to look at it and to wait for it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from headway.config.server import ServerOptions
from headway.engine.async_engine import AsyncEngine
from headway.engine.engine import Engine
from headway.server.run import DrainingServer
from headway.server.service import Service
from tests.engine.builders import ByteTokenizer, ScriptedExecutor, echo, make_engine
from tests.support.gate import PATIENCE_S
from tests.support.gate import Gate as Gate  # used by those who import from here

MODEL = "bytes"


@dataclass
class Running:
    """A server that runs.

    Attributes:
        url: where.
        engine: to look into while it rests.
    """

    url: str
    engine: Engine
    service: Service
    server: DrainingServer
    http: httpx.Client
    _loop: asyncio.AbstractEventLoop = field(repr=False)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Send JSON, wait for the answer."""
        return self.http.post(path, json=body, **options)

    def complete(self, prompt: Any = "abc", **fields: Any) -> httpx.Response:
        """A completion."""
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def stream(self, path: str, body: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        """All events of a stream but the last, which must be ``[DONE]``."""
        with self.http.stream("POST", path, json={**body, "stream": True}, **options) as response:
            assert response.status_code == 200, response.read()
            return events_of(response.read())

    def openai(self, **options: Any) -> openai.OpenAI:
        """The official client."""
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def connect(self, path: str, body: Any, *, headers: str = "") -> socket.socket:
        """Send a call and leave its answer in the socket."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        content = json.dumps(body).encode()
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Call something on the server's event loop."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it never came to pass"
            time.sleep(0.001)

    def rest(self) -> None:
        """Wait until nothing is going on; then check that nothing was left behind."""
        engine, service = self.service.engine, self.service
        self.until(lambda: not service.calls and not engine.num_open and not engine.heartbeat.busy)
        self.until(lambda: (service.admission.num_requests, service.admission.num_tokens) == (0, 0))
        scheduler = self.engine.scheduler
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        assert scheduler.kv.pool.num_free == scheduler.cache.num_blocks
        scheduler.check_invariants()


def events_of(content: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream but the last, which must be ``[DONE]``; comments are passed over."""
    assert content.endswith(b"\n\n")
    blocks = [block for block in content.decode().split("\n\n")[:-1] if not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@contextmanager
def serving(
    executor: Any = None,
    *,
    options: dict[str, Any] | None = None,
    tokenizer: ByteTokenizer | None = None,
    engine: Engine | None = None,
    **overrides: Any,
) -> Iterator[Running]:
    """Run a server in a thread; ``overrides`` are options of a small scheduler."""
    if engine is None:
        engine = make_engine(executor or ScriptedExecutor(echo), tokenizer=tokenizer, clock=time.monotonic, **overrides)
    service = Service(AsyncEngine(engine), ServerOptions(port=0, **(options or {})))
    server = DrainingServer(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.002)
        url = f"http://127.0.0.1:{server.port}"
        assert server._loop is not None
        with closing(httpx.Client(base_url=url, timeout=PATIENCE_S)) as http:
            yield Running(url, engine, service, server, http, server._loop)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not end"
