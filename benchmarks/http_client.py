"""A client of streams that costs little itself: raw HTTP over sockets of one event loop, to this machine only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
START_TIMEOUT_S, END_TIMEOUT_S = 300.0, 60.0
DONE = b"data: [DONE]\n\n"


@dataclass
class Stream(asyncio.Protocol):
    """One call and what came back.

    Attributes:
        request: the whole of it.
        done: set when the connection is closed, by either side.
        leave_after_s: give up so long after sending; ``None`` to stay.
        begin_s, first_s, end_s: when the call was sent, when its first event came, and its last byte.
    """

    request: bytes
    done: asyncio.Event = field(default_factory=asyncio.Event)
    leave_after_s: float | None = None
    begin_s: float = 0.0
    first_s: float = 0.0
    end_s: float = 0.0
    left: bool = False
    _parts: list[bytes] = field(default_factory=list)
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.begin_s = time.perf_counter()
        transport.write(self.request)
        if self.leave_after_s is not None:
            asyncio.get_running_loop().call_later(self.leave_after_s, self._leave)

    def data_received(self, data: bytes) -> None:
        self.end_s = time.perf_counter()
        if not self.first_s and b"data: " in data:
            self.first_s = self.end_s
        self._parts.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.done.set()

    def _leave(self) -> None:
        if not self.done.is_set() and self._transport is not None:
            self.left = True
            self._transport.abort()

    @property
    def status(self) -> int:
        """Of HTTP; 0 if nothing came."""
        return int(self._parts[0].split(b" ", 2)[1]) if self._parts else 0

    @property
    def body(self) -> bytes:
        """The answer without its head; chunked bodies with the marks of their chunks."""
        return b"".join(self._parts).partition(b"\r\n\r\n")[2]

    @property
    def ended(self) -> bool:
        """Whether the stream came to its proper end."""
        return DONE in self.body

    @property
    def usage(self) -> Mapping[str, Any]:
        """The usage that the stream ended with."""
        start = self.body.rindex(b'"usage":{') + len(b'"usage":')
        usage: Mapping[str, Any] = json.JSONDecoder().raw_decode(self.body[start:].decode())[0]
        return usage


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A call whose connection ends with its answer."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def run_streams(port: int, requests: Sequence[bytes]) -> list[Stream]:
    """Send all at once and wait for all answers."""
    loop = asyncio.get_running_loop()
    streams = [Stream(request) for request in requests]
    await asyncio.gather(*(loop.create_connection(lambda each=stream: each, HOST, port) for stream in streams))
    await asyncio.gather(*(stream.done.wait() for stream in streams))
    return streams


def get(port: int, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a small call."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@dataclass(frozen=True)
class ServerProcess:
    """A server that runs."""

    port: int
    pid: int

    @property
    def rss_bytes(self) -> int:
        """Memory that it has now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_s(self) -> float:
        """Processor time that it took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(options: Sequence[str]) -> Iterator[ServerProcess]:
    """Run ``headway serve`` with these options until the end of the block."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "headway.cli.main", "serve", *options, "--host", HOST, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(port, process)
        yield ServerProcess(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for the server; :class:`SystemExit` if it ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode}")
        try:
            if get(port, "/health/ready")[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not get ready")
