"""Admission over HTTP: a clear no before any work is done, and no count that leaks whatever ends a call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.engine.builders import ByteTokenizer, ScriptedExecutor, echo
from tests.server.running import Gate, Running, serving


def held(server: Running, gate: Gate, prompt: Any = "ab", **fields: Any) -> socket.socket:
    """A call that is in flight until the gate opens."""
    before = server.service.admission.num_requests
    connection = server.connect("/v1/completions", {"prompt": prompt, **fields})
    server.until(lambda: server.service.admission.num_requests > before)
    return connection


def assert_turned_away(answer: httpx.Response, reason: str) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("service_unavailable", reason, None)
    assert "limit" in error["message"]


def test_a_call_of_several_is_turned_away_whole() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_queued_reqs=3) as server:
        connections = [held(server, gate), held(server, gate)]

        assert_turned_away(server.complete("ab", n=2), "queue_full")
        assert_turned_away(server.complete(["a", "b"]), "queue_full")
        assert_turned_away(server.complete("ab", best_of=2), "queue_full")
        assert_turned_away(server.complete("ab", n=2, stream=True), "queue_full")
        assert server.service.admission.num_requests == 2
        assert server.service.engine.num_open == 2
        connections.append(held(server, gate))
        assert_turned_away(server.complete("ab"), "queue_full")

        gate.open()
        for connection in connections:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()
        server.rest()
        assert server.complete(["a", "b", "c"]).status_code == 200
        server.rest()
        assert server.service.admission.turned_away == {"queue_full": 5, "queue_tokens": 0}


def test_prompt_tokens_count_until_the_first_token() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_queued_tokens=50) as server:
        first = held(server, gate, "x" * 30)
        server.until(lambda: server.service.admission.num_tokens == 30)

        assert_turned_away(server.complete("y" * 30), "queue_tokens")
        assert_turned_away(server.complete("y" * 11, n=2), "queue_tokens")
        gate.let_through()
        server.until(lambda: server.service.admission.num_tokens == 0)
        second = held(server, gate, "y" * 30)
        gate.open()
        for connection in (first, second):
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()
        server.rest()


def test_a_prompt_beyond_the_limit_is_served_when_the_server_is_idle() -> None:
    with serving(max_num_queued_tokens=50) as server:
        assert server.complete("x" * 60).status_code == 200
        assert server.complete(["x" * 60, "y" * 60]).status_code == 200
        server.rest()


def test_a_limit_of_no_requests_turns_everybody_away() -> None:
    with serving(max_num_queued_reqs=0) as server:
        assert_turned_away(server.complete("ab"), "queue_full")
        assert server.http.get("/health/ready").status_code == 200


def test_the_answer_needs_nothing_of_a_stuck_engine() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_queued_reqs=1) as server:
        connection = held(server, gate)
        gate.wait()  # the engine's thread is in the middle of a step and stays there

        for _ in range(20):
            assert_turned_away(server.complete("ab"), "queue_full")
        connection.close()
        gate.open()
        server.rest()


def test_a_burst_lets_in_exactly_as_many_as_fit() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), max_num_queued_reqs=5) as server:
        with ThreadPoolExecutor(24) as pool:
            answers = [pool.submit(server.complete, "ab", max_tokens=2) for _ in range(24)]
            server.until(lambda: sum(answer.done() for answer in answers) == 19)
            gate.open()
            statuses = sorted(answer.result().status_code for answer in answers)

        assert statuses == [200] * 5 + [503] * 19
        server.rest()


class SlowTokenizer(ByteTokenizer):
    """Counts the texts it is given, and can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.num_texts = 0
        self.may_go_on = threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.num_texts += 1
        assert self.may_go_on.wait(20)
        return super().encode(text, add_special_tokens)


def test_a_burst_of_long_texts_is_turned_away_without_tokenising_them() -> None:
    tokenizer, gate = SlowTokenizer(), Gate()
    limits = {"max_model_len": 8192, "num_blocks": 4000, "max_num_queued_tokens": 5000}
    with serving(ScriptedExecutor(echo, during=gate), tokenizer=tokenizer, **limits) as server:
        with ThreadPoolExecutor(10) as pool:
            answers = [pool.submit(server.complete, "x" * 4900, max_tokens=1) for _ in range(10)]
            server.until(lambda: server.service.admission.num_requests == 10 and tokenizer.num_texts == 1)
            tokenizer.may_go_on.set()
            server.until(lambda: sum(answer.done() for answer in answers) == 9)
            gate.open()
            statuses = sorted(answer.result().status_code for answer in answers)

        assert statuses == [200] + [503] * 9
        assert tokenizer.num_texts == 1
        server.rest()


class BrokenTokenizer(ByteTokenizer):
    """Fails on request."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("unicode"):
            raise UnicodeError("cannot encode this")
        if text.startswith("bug"):
            raise ZeroDivisionError("a bug")
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize(
    ("prompt", "status"),
    [("unicode", 400), ("unicode" * 1000, 400), ("bug", 500), ("bug" * 2000, 500), (["ok", "bug"], 500)],
)
def test_failed_tokenisation_gives_everything_back(prompt: Any, status: int) -> None:
    with serving(tokenizer=BrokenTokenizer(), max_num_queued_reqs=2, max_num_queued_tokens=9) as server:
        for stream in (False, True):
            answer = server.complete(prompt, stream=stream)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        server.rest()
        assert server.complete(["ok", "ok"]).status_code == 200


def refused_prompt(server: Running, gate: Gate) -> None:
    assert server.complete("x" * 128).status_code == 400


def failed_step(server: Running, gate: Gate) -> None:
    assert server.complete("fail").status_code == 500


def finished(server: Running, gate: Gate) -> None:
    assert server.complete("ab", n=2).status_code == 200


def aborted(server: Running, gate: Gate) -> None:
    gate.shut()
    before = gate.num_reached
    connection = server.connect("/v1/completions", {"prompt": "ab"}, headers="X-Request-Id: to-abort\r\n")
    gate.wait(before + 1)
    assert server.post("/v1/abort/to-abort").status_code == 200
    gate.open()
    assert connection.recv(12) == b"HTTP/1.1 200"
    connection.close()


def disconnected(server: Running, gate: Gate) -> None:
    gate.shut()
    held(server, gate, ["x" * 20, "y" * 20]).close()
    server.until(lambda: not server.service.calls)
    gate.open()


def expired(server: Running, gate: Gate) -> None:
    gate.shut()
    before = gate.num_reached
    running = [held(server, gate, letter * 20) for letter in "abcd"]  # all slots
    gate.wait(before + 1)
    inbox = server.service.engine._worker._inbox
    num_orders = inbox.qsize()
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(server.complete, "z" * 9, timeout=0.01)
        server.until(lambda: inbox.qsize() == num_orders + 2)  # it came, and its time ran out
        gate.open()
        assert queued.result().status_code == 504
    for connection in running:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()


ENDS: list[Callable[[Running, Gate], None]] = [refused_prompt, failed_step, finished, aborted, disconnected, expired]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_every_end_gives_everything_back(end: Callable[[Running, Gate], None]) -> None:
    gate = Gate(is_open=True)

    def before(plan: Any) -> None:
        if any(row.tokens[:4].tolist() == list(b"fail") for row in plan.admitted):
            raise ValueError("this one fails")

    executor = ScriptedExecutor(echo, before=before, during=gate)
    with serving(executor, max_num_queued_reqs=5, max_num_queued_tokens=100) as server:
        for _ in range(3):
            end(server, gate)
            server.rest()
        assert server.complete(list("abcde"), max_tokens=1).status_code == 200
        server.rest()
