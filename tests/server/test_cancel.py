"""Whoever goes away is let go of: in every state, streamed or not, within two steps."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
import time
from typing import Any

import pytest

from headway.config import CacheConfig, SchedulerConfig
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.loop import EngineLoop
from headway.engine.processor import OutputProcessor
from headway.sim.fake import FakeExecutor
from tests.engine.builders import EOS, ByteTokenizer, ScriptedExecutor, echo
from tests.server.running import PATIENCE_S, Gate, Running, serving

NUM_DISCONNECTS = int(os.environ.get("HEADWAY_TEST_DISCONNECTS", "500"))
PATHS = ("/v1/completions", "/v1/chat/completions")


def body_of(path: str, prompt: str, **fields: Any) -> dict[str, Any]:
    if path == "/v1/completions":
        return {"prompt": prompt, **fields}
    return {"messages": [{"role": "u", "content": prompt}], **fields}


def hang_up(connection: socket.socket, *, rudely: bool = False) -> None:
    """Close a connection; rudely means without a goodbye."""
    if rudely:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("state", ["queued", "mid-prompt", "mid-decode", "last token"])
def test_a_client_that_goes_away_frees_slot_and_blocks(state: str, path: str, stream: bool) -> None:
    gate = Gate()
    executor = ScriptedExecutor(echo, during=gate)
    with serving(executor, max_num_seqs=1, max_num_batched_tokens=16, max_model_len=256) as server:
        prompt = "x" * 60 if state == "mid-prompt" else "x"
        max_tokens = 2 if state == "last token" else 100
        other = None
        if state == "queued":
            other = server.connect("/v1/completions", {"prompt": "o", "max_tokens": 3})
            gate.wait()
        connection = server.connect(path, body_of(path, prompt, max_tokens=max_tokens, stream=stream))
        server.until(lambda: len(server.service.calls) == (2 if other else 1))  # it is counted a moment before
        gate.wait()
        if state in ("mid-decode", "last token"):
            gate.let_through(1 if state == "last token" else 3)

        hang_up(connection)
        server.until(lambda: len(server.service.calls) == (1 if other else 0))
        num_plans = len(executor.plans)
        gate.open()
        if other is not None:
            assert other.recv(12) == b"HTTP/1.1 200"
            other.close()
        server.rest()

        ran_on = len(executor.plans) - num_plans
        assert ran_on <= (2 if other is None else 2 + 2)  # the other one has two tokens to go
        assert server.complete("abc", max_tokens=3).json()["choices"][0]["text"] == "abc"


def fake_engine(**overrides: Any) -> Engine:
    """An engine whose executor checks every block it would read."""
    scheduler = Scheduler(
        SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 128, **overrides}),
        CacheConfig(block_size=4, num_blocks=60),
    )
    tokenizer = ByteTokenizer()
    executor = FakeExecutor(block_size=4, vocab_size=256, delay_s=0.001)
    loop = EngineLoop(scheduler, executor, time.monotonic, processor=OutputProcessor(tokenizer))
    return Engine(loop, tokenizer, 300, (EOS,))


def test_clients_that_go_away_at_any_moment_leave_nothing_behind() -> None:
    dice = random.Random(7)
    with serving(engine=fake_engine()) as server:
        expected = server.complete("the next one", max_tokens=20, ignore_eos=True).json()["choices"]
        server.rest()
        num_tasks = server.on_loop(lambda: len(asyncio.all_tasks()))

        def come_and_go(seed: int) -> None:
            own = random.Random(seed)
            path = own.choice(PATHS)
            prompt = own.choice(["a shared beginning ", ""]) + chr(97 + own.randrange(26)) * own.randrange(1, 60)
            body = body_of(
                path, prompt, max_tokens=own.randrange(1, 30), stream=own.random() < 0.7, n=own.choice([1, 2])
            )
            connection = server.connect(path, body)
            connection.settimeout(own.uniform(0.0, 0.06) ** 1.5 + 1e-4)
            try:
                while connection.recv(256) and own.random() < 0.8:
                    pass
            except TimeoutError:
                pass
            hang_up(connection, rudely=own.random() < 0.3)

        seeds = [dice.randrange(10**9) for _ in range(NUM_DISCONNECTS)]
        for start in range(0, len(seeds), 10):
            threads = [threading.Thread(target=come_and_go, args=(seed,)) for seed in seeds[start : start + 10]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        server.rest()

        server.until(lambda: server.on_loop(lambda: len(asyncio.all_tasks())) <= num_tasks)
        finished = server.engine.metrics.counters.requests_finished
        assert finished["abort"] > NUM_DISCONNECTS // 10  # else they came too late to say anything
        assert server.complete("the next one", max_tokens=20, ignore_eos=True).json()["choices"] == expected
        server.rest()


def test_a_short_prompt_does_not_wait_behind_cancelled_long_ones() -> None:
    executor = ScriptedExecutor(echo, during=(gate := Gate()))
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 1024, "num_blocks": 1000}
    with serving(executor, **limits) as server:
        long = [server.connect("/v1/completions", {"prompt": chr(97 + place) * 800}) for place in range(10)]
        gate.wait()
        server.until(lambda: server.service.admission.num_requests == 10)
        for connection in long:
            hang_up(connection)
        server.until(lambda: not server.service.calls)
        num_plans = len(executor.plans)
        short = server.connect("/v1/completions", {"prompt": "s" * 8, "max_tokens": 1})
        server.until(lambda: server.service.admission.num_requests == 11)
        gate.open()
        assert short.recv(12) == b"HTTP/1.1 200"
        short.close()
        server.rest()

        assert len(executor.plans) - num_plans == 1


def test_a_call_can_be_aborted_by_its_id() -> None:
    gate = Gate(allowed=2)
    with serving(ScriptedExecutor(echo, during=gate)) as server:
        whole = server.connect("/v1/completions", {"prompt": "abc", "n": 2}, headers="X-Request-Id: job-1\r\n")
        gate.wait(3)

        answer = server.post("/v1/abort/job-1")
        assert (answer.status_code, answer.json()) == (200, {"id": "job-1", "object": "abort", "aborted": True})
        gate.open()
        content = whole.recv(4096)
        whole.close()
        assert content.startswith(b"HTTP/1.1 200")
        assert b"x-request-id: job-1" in content
        assert content.count(b'"text":"ab"') == content.count(b'"finish_reason":"abort"') == 2
        server.rest()
        assert server.post("/v1/abort/job-1").status_code == 404
        assert server.post("/v1/abort/job-1").json()["error"]["code"] == "request_not_found"


def test_an_aborted_stream_ends_in_good_order() -> None:
    gate = Gate(allowed=2)
    with serving(ScriptedExecutor(echo, during=gate)) as server:
        with server.http.stream(
            "POST", "/v1/completions", json={"prompt": "abc", "stream": True}, headers={"X-Request-Id": "s"}
        ) as response:
            lines = response.iter_lines()
            while "data" not in next(lines):
                pass
            gate.wait(3)
            assert server.post("/v1/abort/s").status_code == 200
            gate.open()
            rest = [line for line in lines if line]

        assert '"finish_reason":"abort"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert sum('"text":"c"' in line for line in rest) == 0  # computed while it was aborted, and not delivered
        server.rest()


def test_a_queued_call_can_be_aborted() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_seqs=1) as server:
        running = server.connect("/v1/completions", {"prompt": "o", "max_tokens": 1})
        gate.wait()
        queued = server.connect("/v1/completions", {"prompt": "q"}, headers="X-Request-Id: q\r\n")
        server.until(lambda: "q" in server.service.calls)
        assert server.post("/v1/abort/q").status_code == 200
        gate.open()

        content = queued.recv(4096)
        assert content.startswith(b"HTTP/1.1 200")
        assert b'"text":""' in content
        assert b'"finish_reason":"abort"' in content
        for connection in (running, queued):
            connection.close()
        server.rest()


class HeldTokenizer(ByteTokenizer):
    """Tokenises when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize(
    ("way", "status", "code"), [("abort", 409, b"aborted"), ("timeout", 504, b"queue_timeout"), ("hang up", 0, b"")]
)
def test_a_call_that_is_being_tokenised_can_end_too(way: str, status: int, code: bytes) -> None:
    tokenizer = HeldTokenizer()
    with serving(tokenizer=tokenizer, max_model_len=8192, num_blocks=3000) as server:
        body = {"prompt": "x" * 5000, "timeout": 2 if way == "timeout" else None}
        connection = server.connect("/v1/completions", body, headers="X-Request-Id: t\r\n")
        assert tokenizer.begun.wait(PATIENCE_S)
        if way == "abort":
            assert server.post("/v1/abort/t").status_code == 200
        elif way == "timeout":
            server.until(lambda: server.service.calls["t"]._failure is not None)
        else:
            hang_up(connection)
            server.until(lambda: not server.service.calls)
        tokenizer.may_go_on.set()
        if status:
            content = connection.recv(4096)
            assert content.startswith(b"HTTP/1.1 %d" % status)
            assert b'"code":"%s"' % code in content
            connection.close()
        server.rest()
        assert server.engine.metrics.counters.requests_added == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_has_not_begun_by_its_deadline_ends(stream: bool) -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_seqs=1) as server:
        running = server.connect("/v1/completions", {"prompt": "o", "max_tokens": 40})
        gate.wait()
        late = server.connect("/v1/completions", {"prompt": "q", "n": 2, "timeout": 0.01, "stream": stream})
        inbox = server.service.engine._worker._inbox
        server.until(lambda: inbox.qsize() == 2)
        gate.open()

        content = late.recv(4096)
        assert content.startswith(b"HTTP/1.1 504")
        assert b'"code":"queue_timeout"' in content
        assert running.recv(12) == b"HTTP/1.1 200"
        for connection in (running, late):
            connection.close()
        server.rest()


def test_a_deadline_is_none_of_a_call_that_has_begun() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_seqs=1) as server:
        call = server.connect("/v1/completions", {"prompt": ["o", "p"], "max_tokens": 5, "timeout": 0.01})
        gate.wait()
        server.until(lambda: server.service.engine._worker._inbox.qsize() == 1)
        gate.open()

        assert call.recv(4096).count(b'"finish_reason":"length"') == 2
        call.close()
        server.rest()


def test_duplicate_ids_are_refused_while_the_first_is_unfinished() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate)) as server:
        headers = {"X-Request-Id": "twice"}
        first = server.connect("/v1/completions", {"prompt": "a"}, headers="X-Request-Id: twice\r\n")
        gate.wait()
        for path in PATHS:
            again = server.post(path, body_of(path, "a"), headers=headers)
            assert again.status_code == 400
            assert again.json()["error"]["code"] == "duplicate_request_id"
            assert again.json()["error"]["param"] == "X-Request-Id"
        hang_up(first)
        server.until(lambda: not server.service.calls)
        still = server.post("/v1/completions", {"prompt": "a"}, headers=headers)
        assert still.json()["error"]["code"] == "duplicate_request_id"  # the engine has not let go yet
        gate.open()
        server.rest()

        assert server.post("/v1/completions", {"prompt": "a"}, headers=headers).json()["id"] == "twice"
        assert server.post("/v1/completions", {"prompt": "a"}, headers=headers).headers["x-request-id"] == "twice"
        server.rest()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a#1", "x" * 129, "\u00e9"])
def test_ids_have_a_form(name: str, server: Running) -> None:
    answer = server.post("/v1/completions", {"prompt": "a"}, headers={"X-Request-Id": name.encode("latin-1")})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request_id"
    assert answer.headers["x-request-id"]


def test_a_client_that_leaves_before_its_body_is_here_is_no_error(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    for _ in range(5):
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        )
        connection.sendall(head + b'{"prompt": ')
        server.until(lambda: bool(server.server.server_state.tasks))
        hang_up(connection)
        server.until(lambda: not server.server.server_state.tasks)

    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert server.complete("a").status_code == 200


def test_a_slow_reader_holds_up_nobody_and_loses_nothing(server: Running) -> None:
    slow = server.connect("/v1/completions", {"prompt": "ab", "max_tokens": 100, "stream": True})
    server.until(lambda: not server.service.engine.num_open)
    assert server.complete("xyz", max_tokens=3).json()["choices"][0]["text"] == "xyz"
    content = b""
    while not content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        content += slow.recv(65536)
    slow.close()

    assert content.count(b'"finish_reason":"length"') == 1
    server.rest()


@pytest.fixture(scope="module")
def server() -> Any:
    with serving() as running:
        yield running
        running.rest()
