"""The end in good order: not ready at once, new work refused, open answers ended, exit code 0."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import PATIENCE_S, Gate, events_of, serving

ROOT = Path(__file__).resolve().parents[2]


def test_a_drain_refuses_new_work_at_once_and_lets_open_answers_end() -> None:
    gate = Gate(allowed=1)
    with serving(ScriptedExecutor(echo, during=gate), options={"drain_timeout": PATIENCE_S}) as server:
        body = {"prompt": "xy", "max_tokens": 5, "stream": True}
        with (
            server.http.stream("POST", "/v1/completions", json=body) as response,
            httpx.Client(base_url=server.url) as other,
        ):
            whole = server.connect("/v1/completions", {"prompt": "ab", "max_tokens": 5})
            server.until(lambda: len(server.service.calls) == 2)
            assert other.get("/health/ready").status_code == 200
            server.on_loop(server.server.end)

            assert other.get("/health/ready").status_code == other.get("/health").status_code == 503
            assert other.get("/health").json()["status"] == "draining"
            assert other.get("/health/live").status_code == 200
            assert other.get("/v1/models").status_code == 200
            for path, field in (("", {"prompt": "a"}), ("chat/", {"messages": [{"role": "u"}]})):
                refused = other.post(f"/v1/{path}completions", json=field)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                assert refused.headers["retry-after"]
            gate.open()
            events = events_of(response.read())

        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert b'"text":"ababa"' in whole.recv(4096)
        whole.close()
        server.until(lambda: server.server.should_exit)
        assert server.server.exit_code == 0


def test_what_has_not_ended_by_then_is_told() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"drain_timeout": 0.05}) as server:
        whole = server.connect("/v1/completions", {"prompt": "ab"})
        gate.wait()
        stream = server.connect("/v1/completions", {"prompt": "xy", "n": 2, "stream": True})
        server.until(lambda: len(server.service.calls) == 2)
        server.on_loop(server.server.end)
        for connection in (whole, stream):  # neither had anything to say yet
            content = connection.recv(4096)
            assert content.startswith(b"HTTP/1.1 503")
            assert b'"code":"draining"' in content
            connection.close()
        server.until(lambda: server.server.should_exit)
        gate.open()
        assert server.server.exit_code == 0


def test_a_stream_that_has_begun_ends_with_an_error_event() -> None:
    gate = Gate(allowed=1)
    with serving(ScriptedExecutor(echo, during=gate), options={"drain_timeout": 0.05}) as server:
        with server.http.stream("POST", "/v1/completions", json={"prompt": "xy", "stream": True}) as response:
            server.on_loop(server.server.end)
            first, error = events_of(response.read())

        assert first["choices"][0]["text"] == "x"
        assert error["error"]["code"] == "draining"
        gate.open()
        server.until(lambda: server.server.should_exit)


def test_a_second_signal_ends_the_wait() -> None:
    gate = Gate(allowed=1)
    with serving(ScriptedExecutor(echo, during=gate), options={"drain_timeout": 3600.0}) as server:
        call = server.connect("/v1/completions", {"prompt": "ab"})
        gate.wait()
        server.on_loop(server.server.end)
        server.on_loop(server.server.end)

        assert call.recv(4096).startswith(b"HTTP/1.1 503")
        call.close()
        gate.open()
        server.until(lambda: server.server.should_exit)


def test_when_the_engine_dies_streams_are_told_and_the_process_is_to_end() -> None:
    gate = Gate(allowed=1)
    executor = ScriptedExecutor(echo, during=gate)
    with serving(executor, max_num_seqs=1) as server:
        body = {"prompt": "xy", "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            queued = server.connect("/v1/completions", {"prompt": "q"})
            server.until(lambda: server.service.admission.num_requests == 2)
            server.engine.scheduler.update = None  # type: ignore[assignment,method-assign]  # a bug of the scheduler
            gate.open()
            first, error = events_of(response.read())

        assert first["choices"][0]["text"] == "x"
        assert error["error"]["code"] == "engine_dead"
        content = queued.recv(4096)
        assert content.startswith(b"HTTP/1.1 503")
        assert b'"code":"engine_dead"' in content
        queued.close()
        health = server.service.health()
        assert (health.status, health.live, health.ready) == ("dead", False, False)
        server.until(lambda: server.server.should_exit)
        assert server.server.exit_code == 1
        assert (server.service.admission.num_requests, server.service.admission.num_tokens) == (0, 0)


# --- processes -------------------------------------------------------------------------------------------------


@contextmanager
def process(drain_timeout: float, step_s: float) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-m", "tests.server.serve_process", str(drain_timeout), str(step_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
                yield child, client
        finally:
            if child.poll() is None:
                child.kill()


def lines_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_open_stream_end_and_the_process_exit_with_0(number: signal.Signals) -> None:
    with process(drain_timeout=PATIENCE_S, step_s=0.005) as (child, client):
        body = {"prompt": "ab", "max_tokens": 60, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            events = lines_of(response)
            first = next(events)
            child.send_signal(number)
            rest = list(events)

        assert rest[-1]["choices"][0]["finish_reason"] == "length"
        assert "".join(event["choices"][0]["text"] for event in [first, *rest]) == "ab" * 30
        output, errors = child.communicate(timeout=PATIENCE_S)
        assert (child.returncode, output) == (0, "done\n"), errors
        assert "Traceback" not in errors


def test_a_signal_ends_what_takes_too_long() -> None:
    with process(drain_timeout=0.05, step_s=0.005) as (child, client):
        body = {"prompt": "ab", "max_tokens": 2000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            events = lines_of(response)
            next(events)
            child.send_signal(signal.SIGTERM)
            *_, last = events

        assert last["error"]["code"] == "draining"
        output, errors = child.communicate(timeout=PATIENCE_S)
        assert (child.returncode, output) == (0, "done\n"), errors
        assert "Traceback" not in errors


def test_a_dead_engine_ends_the_process_with_1() -> None:
    with process(drain_timeout=PATIENCE_S, step_s=0.0) as (child, client):
        answer = client.post("/v1/completions", json={"prompt": "die"})

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 1
