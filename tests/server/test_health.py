"""Health tells the truth: frozen and dead are 503, busy and idle are 200, and the engine's thread is not asked."""

from __future__ import annotations

import pytest

from headway.engine.messages import Heartbeat
from headway.server.health import judge
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import Gate, serving

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("heartbeat", "now", "status"),
    [
        (Heartbeat(at_s=0.0, busy=False, num_steps=0, step_s=None), HOUR_S, "ok"),  # never had anything to do
        (Heartbeat(at_s=9.0, busy=False, num_steps=3, step_s=9.0), 9.0 + HOUR_S, "ok"),  # idle for an hour
        (Heartbeat(at_s=9.0, busy=True, num_steps=3, step_s=9.0), 9.5, "ok"),  # busy
        (Heartbeat(at_s=9.0, busy=True, num_steps=3, step_s=9.0), 68.9, "ok"),  # in one long prefill
        (Heartbeat(at_s=9.0, busy=True, num_steps=3, step_s=9.0), 69.1, "frozen"),
        (Heartbeat(at_s=9.0 + HOUR_S, busy=True, num_steps=3, step_s=9.0), 9.5 + HOUR_S, "ok"),  # just woken up
        (Heartbeat(at_s=9.0, busy=True, num_steps=0, step_s=None), 70.0, "frozen"),  # in its first step
        (Heartbeat(at_s=9.0, busy=True, num_steps=3, step_s=9.0), 8.0, "ok"),  # a heartbeat newer than the question
    ],
)
def test_a_heartbeat_is_judged_by_silence_while_busy(heartbeat: Heartbeat, now: float, status: str) -> None:
    health = judge(heartbeat, now, stall_timeout_s=60.0, dead=False, draining=False)

    assert health.status == status
    assert health.live == health.ready == (status == "ok")
    assert health.silent_s == max(0.0, now - heartbeat.at_s)
    assert (health.step_age_s is None) == (heartbeat.step_s is None)


def test_draining_is_live_but_not_ready_and_frozen_goes_before_it() -> None:
    fresh = Heartbeat(at_s=9.0, busy=True, num_steps=3, step_s=9.0)
    draining = judge(fresh, 10.0, stall_timeout_s=60.0, dead=False, draining=True)
    frozen = judge(fresh, 100.0, stall_timeout_s=60.0, dead=False, draining=True)
    dead = judge(fresh, 100.0, stall_timeout_s=60.0, dead=True, draining=True)

    assert [(health.status, health.live, health.ready) for health in (draining, frozen, dead)] == [
        ("draining", True, False),
        ("frozen", False, False),
        ("dead", False, False),
    ]


def test_a_frozen_engine_is_told_without_its_thread_and_comes_back() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"stall_timeout": 0.05}) as server:
        assert server.http.get("/health").status_code == 200
        call = server.connect("/v1/completions", {"prompt": "ab", "max_tokens": 2})
        gate.wait()  # and now nothing moves

        for path in ("/health", "/health/ready", "/health/live"):
            server.until(lambda path=path: server.http.get(path).status_code == 503)  # type: ignore[misc]
        body = server.http.get("/health").json()
        assert (body["status"], body["live"], body["ready"], body["busy"]) == ("frozen", False, False, True)
        assert body["last_step_age_s"] is None
        assert body["silent_s"] > 0.05

        gate.open()
        assert call.recv(12) == b"HTTP/1.1 200"
        call.close()
        server.rest()
        body = server.http.get("/health").json()
        assert (body["status"], body["busy"], body["steps"]) == ("ok", False, 2)
        assert body["last_step_age_s"] >= 0


def test_a_saturated_engine_is_healthy() -> None:
    with serving(max_num_seqs=2, options={"stall_timeout": 5.0}) as server:
        calls = [server.connect("/v1/completions", {"prompt": "ab", "max_tokens": 100}) for _ in range(20)]
        answers = {path: [server.http.get(path).status_code for _ in range(10)] for path in ("/health", "/health/live")}
        for call in calls:
            assert call.recv(12) == b"HTTP/1.1 200"
            call.close()
        server.rest()

    assert answers == {"/health": [200] * 10, "/health/live": [200] * 10}


def test_health_needs_no_key_and_everything_else_does() -> None:
    with serving(options={"api_key": ("secret",)}) as server:
        for path in ("/health", "/health/live", "/health/ready"):
            assert server.http.get(path).status_code == 200
            assert server.http.head(path).status_code == 200
        assert server.http.get("/health-of-another-kind").status_code == 401
        assert server.http.get("/version").status_code == 401
