"""The debug interface tells of every request what it does, or why it waits, since when, and who is in the way."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from headway.core import Hold, Policy, Request
from headway.core.inspection import CACHED, FREE
from headway.core.policies import POLICIES
from headway.core.policies.base import PolicyView
from headway.core.reasons import ReasonCode
from headway.engine.explain import TITLES
from headway.engine.metrics import PHASES
from headway.server.routes import debug as routes
from headway.server.state import run_lengths
from headway.sim.fake import FakeExecutor
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.looking import between_steps
from tests.server.running import Gate, Running, serving


@contextmanager
def held_in_step(step: int, *calls: dict[str, Any], **overrides: Any) -> Iterator[tuple[Running, Gate]]:
    """A server with these calls, held in the step of that number."""
    gate = Gate()
    with serving(ScriptedExecutor(echo, before=gate), **overrides) as server:
        connections: list[socket.socket] = []
        for call in calls:
            body = {"max_tokens": 50, **call}
            name = body.pop("id")
            connections.append(server.connect("/v1/completions", body, headers=f"X-Request-Id: {name}\r\n"))
            server.until(lambda: server.service.engine.num_open >= len(connections))
            gate.wait()
        if step > 1:
            gate.let_through(step - 1)
        yield server, gate
        gate.open()
        for connection in connections:
            connection.close()
        server.rest()


def get(server: Running, gate: Gate, path: str) -> Any:
    return between_steps(server, gate, lambda: server.http.get(path)).json()


def test_what_runs_and_what_waits() -> None:
    calls = ({"id": "a", "prompt": [1] * 9}, {"id": "b", "prompt": [2] * 5}, {"id": "c", "prompt": [3] * 6})
    with held_in_step(4, *calls, max_num_seqs=1) as (server, gate):
        answer = get(server, gate, "/debug/requests")

    a, b, c = answer["requests"]
    assert (answer["running"], answer["waiting"], answer["step"]) == (1, 2, 4)
    assert {name: a[name] for name in a if name not in ("age_s", "since_s")} == {
        "request_id": "a",
        "state": "running",
        "state_text": "runs",
        "slot": 0,
        "place": None,
        "since_step": 1,
        "reason": None,
        "num_prompt_tokens": 9,
        "num_known_tokens": 13,
        "num_computed_tokens": 12,
        "num_inflight_tokens": 0,
        "num_cached_tokens": 0,
        "num_output_tokens": 4,
        "max_tokens_in_all": 59,
        "num_blocks": 3,
        "num_preemptions": 0,
        "num_lost_tokens": 0,
        "preempted_by": None,
    }
    assert (b["state"], b["place"], b["reason"]["code"], b["reason"]["by"]) == ("waiting", 0, "slots_full", ["a"])
    assert (b["num_known_tokens"], b["num_computed_tokens"], b["num_blocks"]) == (5, 0, 0)
    assert b["reason"]["text"] == "All 1 slot (max_num_seqs) are taken."
    assert b["since_step"] >= 1
    assert 0 < b["since_s"] <= b["age_s"]
    assert (c["reason"]["code"], c["reason"]["need"], c["reason"]["by"]) == ("queue_position", 1, ["b"])
    assert c["reason"]["title"] == TITLES[ReasonCode.QUEUE_POSITION]


def test_one_call_and_its_parts() -> None:
    calls = ({"id": "two", "prompt": ["abc", "abd"]}, {"id": "one", "prompt": "abc"})
    with held_in_step(2, *calls, max_num_seqs=2) as (server, gate):
        two = get(server, gate, "/debug/requests/two")
        part = get(server, gate, "/debug/requests/two%231")
        one = get(server, gate, "/debug/requests/one")
        nobody = between_steps(server, gate, lambda: server.http.get("/debug/requests/tw"))

    assert (two["request_id"], two["state"]) == ("two", "running")
    assert [entry["request_id"] for entry in two["requests"]] == ["two#0", "two#1"]
    assert [entry["request_id"] for entry in part["requests"]] == ["two#1"]
    assert (one["state"], one["requests"][0]["reason"]["code"]) == ("waiting", "slots_full")
    assert nobody.status_code == 404
    assert nobody.json()["error"]["code"] == "request_not_found"


def test_a_list_can_be_cut() -> None:
    with held_in_step(1, {"id": "a", "prompt": ["a", "b", "c", "d"]}, max_num_seqs=2) as (server, gate):
        answer = get(server, gate, "/debug/requests?limit=3")
        refused = server.http.get("/debug/requests?limit=0")

    assert [entry["request_id"] for entry in answer["requests"]] == ["a#0", "a#1", "a#2"]
    assert (answer["running"], answer["waiting"]) == (2, 2)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "limit"


def test_preemptions_are_told_with_what_they_cost() -> None:
    prompts = [[number] * 9 for number in range(3)]
    gate = Gate()
    executor = FakeExecutor(block_size=4)
    submit, executor.submit = executor.submit, lambda plan: (gate(plan), submit(plan))[1]  # type: ignore[method-assign]
    with serving(executor, num_blocks=10) as server:
        connection = server.connect("/v1/completions", {"prompt": prompts, "max_tokens": 25, "ignore_eos": True})
        gate.wait()
        seen: list[dict[str, Any]] = []
        while not any(entry["state"] == "preempted" for entry in seen):
            seen = get(server, gate, "/debug/requests")["requests"]
        gate.open()
        connection.close()
        server.rest()

    [victim] = [entry for entry in seen if entry["state"] == "preempted"]
    first = seen[0]["request_id"]
    assert (victim["num_preemptions"], victim["preempted_by"]) == (1, first)
    assert victim["num_lost_tokens"] > 0
    assert victim["reason"]["code"] in ("preempted", "kv_short")


def test_the_state_of_the_server() -> None:
    call = {"id": "a", "prompt": ["abcdefgh", "ijklmnop", "x"]}
    with held_in_step(5, call, max_num_seqs=2, max_num_queued_reqs=9) as (server, gate):
        state = get(server, gate, "/debug/state")

    requests, pool, steps = state["requests"], state["pool"], state["steps"]
    assert (requests["running"], requests["waiting"], requests["swapped"]) == (2, 1, 0)
    assert [row["request_id"] for row in requests["rows"]] == ["a#0", "a#1"]
    assert [entry["request_id"] for entry in requests["queue"]] == ["a#2"]
    assert requests["waiting_by_reason"] == [{"code": "slots_full", "title": "all slots taken", "count": 1}]
    assert sum(pool["runs"][1::2]) == pool["num_blocks"] == 100
    assert pool["held"] + pool["cached"] + pool["free"] == 100
    assert dict(zip(pool["runs"][::2], pool["runs"][1::2], strict=True))[FREE] == pool["free"]
    last = dict(zip(steps["columns"], steps["rows"][-1], strict=True))
    assert (last["step"], last["decode_tokens"], last["prefill_tokens"], last["rows"]) == (5, 2, 0, 2)
    assert len(steps["rows"]) == 5
    assert steps["mean_s"].keys() == {*PHASES, "other"}
    assert sum(steps["mean_s"].values()) == pytest.approx(sum(row[-1] for row in steps["rows"]) / 5, rel=0.01)
    assert state["latencies"]["ttft_s"]["count"] == 2
    assert len(state["latencies"]["itl_s"]["quantiles"]) == len(state["latencies"]["levels"]) == 3
    assert state["latencies"]["e2e_s"] == {"quantiles": None, "count": 0}
    assert (state["admission"]["requests"], state["admission"]["max_requests"]) == (3, 9)
    assert state["limits"]["max_num_batched_tokens"] == 64
    assert (state["model"], state["health"]["status"]) == ("bytes", "ok")
    assert state["prefix_cache"]["match_unit_tokens"] == 4


def test_a_large_pool_is_a_short_answer() -> None:
    with serving(num_blocks=100_000) as server:
        assert server.complete(["ab" * 20, "cd" * 30], max_tokens=9).status_code == 200
        server.service.engine.snapshot_age_s = -1.0
        answer = server.http.get("/debug/state")

    assert answer.json()["pool"]["num_blocks"] == 100_000
    assert len(answer.content) < 8_000


def test_runs_say_what_the_blocks_are() -> None:
    random = np.random.default_rng(0)
    owners = np.repeat(random.integers(-4, 9, 500), random.integers(1, 30, 500)).astype(np.int32)

    runs = run_lengths(owners)

    assert np.array_equal(np.repeat(runs[::2], runs[1::2]), owners)
    assert all(here != after for here, after in zip(runs[::2], runs[2::2], strict=False))
    assert run_lengths(np.array([CACHED], np.int32)) == [CACHED, 1]
    assert run_lengths(np.zeros(0, np.int32)) == []


@pytest.mark.parametrize("accepts", [True, False])
def test_long_answers_are_compressed_for_those_who_can_read_it(accepts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "COMPRESS_BYTES", 100)
    with (
        serving() as server,
        server.http.stream(
            "GET", "/debug/state", headers={"Accept-Encoding": "gzip" if accepts else "identity"}
        ) as answer,
    ):
        content = b"".join(answer.iter_raw())

    assert answer.headers.get("content-encoding") == ("gzip" if accepts else None)
    assert json.loads(gzip.decompress(content) if accepts else content)["model"] == "bytes"


def test_while_the_engine_is_stuck_the_last_state_is_shown_with_its_age() -> None:
    with held_in_step(2, {"id": "a", "prompt": "abc"}) as (server, _):
        server.service.engine.snapshot_age_s = -1.0
        state = server.http.get("/debug/state").json()

    assert (state["step"], state["requests"]["running"]) == (0, 0)
    assert state["snapshot_age_s"] > 0.5


@pytest.mark.parametrize("path", ["/debug/requests", "/debug/requests/a", "/debug/state"])
def test_the_key_is_needed(path: str) -> None:
    with serving(options={"api_key": ("secret",)}) as server:
        refused = server.http.get(path)
        answer = server.http.get(path, headers={"Authorization": "Bearer secret"})

    assert refused.status_code == 401
    assert answer.status_code in (200, 404)
    assert "secret" not in answer.text


def test_no_prompt_is_shown() -> None:
    with held_in_step(2, {"id": "a", "prompt": "open sesame"}) as (server, gate):
        requests, state = get(server, gate, "/debug/requests"), get(server, gate, "/debug/state")

    assert "sesame" not in json.dumps([requests, state])


class Curfew(Policy):
    """Lets nobody in for a long time."""

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0, 0.0, request.handle)

    def holds(self, request: Request, view: PolicyView) -> Hold:
        return Hold("curfew", view.now + 500)


def test_a_hold_has_its_sentence_and_its_end_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "curfew", Curfew)
    with serving(ScriptedExecutor(echo), scheduling_policy="curfew") as server:
        connection = server.connect("/v1/completions", {"prompt": "abc"}, headers="X-Request-Id: a\r\n")
        server.until(lambda: server.engine.scheduler.held_until_s is not None)
        server.service.engine.snapshot_age_s = -1.0
        [entry] = server.http.get("/debug/requests").json()["requests"]
        health = server.http.get("/health").json()
        connection.close()
        server.rest()

    reason = entry["reason"]
    assert (reason["code"], reason["why"], reason["by"]) == ("policy_hold", "curfew", [])
    assert reason["text"] == "The policy curfew holds it back: curfew."
    assert re.fullmatch(r"The policy lets it go, in \d+ s at the latest\.", reason["release"])
    assert health["status"] == "ok"
