"""``/metrics`` says what happened, in the names that dashboards know; each request counts once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.reasons import ReasonCode
from headway.engine.metrics import PHASES, MemoryUse
from headway.sim.fake import FakeExecutor
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.looking import between_steps
from tests.server.running import Gate, Running, serving

ROOT = Path(__file__).resolve().parents[2]

BASE = {"model_name": "bytes", "engine": "0"}

# What dashboards and alerts for vLLM read, without their prefix.
KNOWN_ELSEWHERE = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "cache_config_info",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "admission_rejections_total",
    "iteration_tokens_total_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_prefill_kv_computed_tokens_bucket",
    "request_num_preemptions_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
]

ONCE_PER_REQUEST = (
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "request_num_preemptions",
    "request_params_max_tokens",
)


class Samples:
    """What one answer says."""

    def __init__(self, text: str) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation, family.name
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} is there twice"
                self.values[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[f"headway:{name}", frozenset({**BASE, **labels}.items())]

    def by(self, name: str, label: str) -> dict[str, float]:
        """All values of a name, by one label."""
        return {
            dict(labels)[label]: value for (found, labels), value in self.values.items() if found == f"headway:{name}"
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}


def scrape(server: Running) -> Samples:
    answer = server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Samples(answer.text)


@pytest.fixture
def tight() -> Iterator[Running]:
    """Ten blocks for requests that grow: some are preempted."""
    with serving(
        FakeExecutor(block_size=4), num_blocks=10, max_num_queued_reqs=99, max_num_queued_tokens=999
    ) as server:
        server.service.engine.snapshot_age_s = -1.0
        yield server


def complete_all(server: Running, prompts: list[Any], **fields: Any) -> None:
    answer = server.complete(prompts, **fields)
    assert answer.status_code == 200, answer.text
    server.rest()


def test_a_run_is_counted_as_it_was(tight: Running) -> None:
    complete_all(tight, [[number] * 9 for number in range(3)], max_tokens=20, ignore_eos=True)
    complete_all(tight, [[0] * 9], max_tokens=2, ignore_eos=True, n=1)
    assert tight.complete([[1] * 60]).status_code == 400
    found = scrape(tight)

    counters = tight.engine.metrics.counters
    assert sum(counters.preemptions.values()) > 0
    assert {name: found(f"{name}_count") for name in ONCE_PER_REQUEST} == dict.fromkeys(ONCE_PER_REQUEST, 4)
    assert found("request_params_n_count") == 3, "also the call that turned out too long"
    assert found("request_success_total", finished_reason="length") == 4
    assert found("generation_tokens_total") == 62
    assert found("inter_token_latency_seconds_count") == 58
    assert found("request_generation_tokens_sum") == 62
    assert found("request_prompt_tokens_sum") == found("prompt_tokens_total") == 36
    assert found("prompt_tokens_cached_total") == found("prefix_cache_hits_total") == counters.cached_tokens
    assert found("prefix_cache_queries_total") == 36
    by_source = found.by("prompt_tokens_by_source_total", "source")
    assert by_source["local_cache_hit"] == counters.cached_tokens
    assert sum(by_source.values()) == 36
    assert found("request_prefill_kv_computed_tokens_sum") == 36 - counters.cached_tokens
    assert found("num_preemptions_total", kind="recompute", cause="blocks") == sum(counters.preemptions.values())
    assert found("preemption_lost_tokens_total", cause="blocks") == counters.lost_tokens["blocks"] > 0
    assert found("recomputed_tokens_total") == counters.recomputed_tokens > 0
    assert found("steps_total") == found("iteration_tokens_total_count") == counters.steps
    assert found("iteration_tokens_total_sum") == found("computed_tokens_total") == counters.computed_tokens


def test_histograms_are_cumulative_and_end_with_all(tight: Running) -> None:
    complete_all(tight, [[number] * 9 for number in range(3)], max_tokens=20, ignore_eos=True)
    found = scrape(tight)

    for name in (*ONCE_PER_REQUEST, "inter_token_latency_seconds", "iteration_tokens_total"):
        buckets = found.by(f"{name}_bucket", "le")
        values = list(buckets.values())
        assert values == sorted(values), name
        assert buckets["+Inf"] == found(f"{name}_count"), name
    assert list(found.by("request_generation_tokens_bucket", "le").values())[:6] == [0, 0, 0, 0, 0, 3]


def test_names_that_dashboards_know_are_there(tight: Running) -> None:
    complete_all(tight, [[1] * 5], max_tokens=2)
    names = scrape(tight).names

    assert [name for name in KNOWN_ELSEWHERE if f"headway:{name}" not in names] == []


def test_every_reason_and_phase_is_always_there(tight: Running) -> None:
    found = scrape(tight)

    codes = {code.value for code in ReasonCode}
    assert found.by("num_requests_waiting_by_reason", "reason").keys() == codes
    assert found.by("num_requests_unserved_by_reason", "reason").keys() == codes
    assert found.by("step_phase_seconds_count", "phase").keys() == set(PHASES)
    assert found.by("admission_rejections_total", "reason") == {"queue_full": 0, "queue_tokens": 0}
    assert found.by("engine_state", "state") == {"ok": 1, "draining": 0, "frozen": 0, "dead": 0}
    assert found.by("kv_cache_blocks", "state") == {"held": 0, "cached": 0, "free": 10}
    [info] = [dict(labels) for name, labels in found.values if name == "headway:cache_config_info"]
    assert (info["block_size"], info["match_unit_tokens"], info["num_blocks"]) == ("4", "4", "10")


def test_requests_that_wait_are_counted_by_reason() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, before=gate), max_num_seqs=1) as server:
        connection = server.connect("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 50})
        gate.wait()
        found = between_steps(server, gate, lambda: scrape(server))
        gate.open()
        connection.close()
        server.rest()

    reasons = {code: count for code, count in found.by("num_requests_waiting_by_reason", "reason").items() if count}
    assert reasons == {"slots_full": 1, "queue_position": 1}
    assert (found("num_requests_running"), found("num_requests_waiting")) == (1, 2)
    assert found("admission_requests") == 3
    assert (found("open_calls"), found("event_loop_tasks") > 3) == (1, True)
    assert found.by("kv_cache_blocks", "state")["held"] == 1
    assert found("kv_cache_usage_perc") == pytest.approx(0.01)


def test_calls_turned_away_are_counted_by_reason() -> None:
    with serving(max_num_queued_reqs=2) as server:
        server.service.engine.snapshot_age_s = -1.0
        others = server.service.admission.admit(1)
        assert server.complete(["a", "b"]).status_code == 503
        others.release()
        assert server.complete("a").status_code == 200
        server.rest()
        found = scrape(server)

    assert found.by("admission_rejections_total", "reason") == {"queue_full": 1, "queue_tokens": 0}
    assert found("admission_limit", what="requests") == 2
    assert (found("admission_requests"), found("open_calls")) == (0, 0)
    assert found("request_success_total", finished_reason="length") == 1


def test_memory_is_told_by_tier(tight: Running) -> None:
    tight.engine.memory_use = lambda: MemoryUse(800, 300, 70, 20)
    complete_all(tight, [[1] * 9], max_tokens=2)
    found = scrape(tight)

    assert found.by("kv_reserved_bytes", "tier") == {"device": 800, "host": 70}
    assert found.by("kv_resident_bytes", "tier") == {"device": 300, "host": 20}
    assert tight.http.get("/debug/state").json()["memory"] == {
        "kv_reserved_bytes": 800,
        "kv_resident_bytes": 300,
        "host_kv_reserved_bytes": 70,
        "host_kv_resident_bytes": 20,
    }


def test_metrics_need_the_key() -> None:
    with serving(options={"api_key": ("secret",)}) as server:
        assert server.http.get("/metrics").status_code == 401
        assert server.http.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_stuck_engine_does_not_keep_metrics_from_being_read() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, before=gate), options={"stall_timeout": 0.01}) as server:
        server.service.engine.snapshot_age_s = -1.0
        connection = server.connect("/v1/completions", {"prompt": "a", "max_tokens": 50})
        gate.wait()
        server.until(lambda: server.service.health().status == "frozen")
        found = scrape(server)
        gate.open()
        connection.close()
        server.rest()

    assert found("snapshot_age_seconds") > 0
    assert found.by("engine_state", "state")["frozen"] == 1


# --- documents -----------------------------------------------------------------------------------------------


def expressions(dashboard: Any) -> Iterator[str]:
    """All queries of a dashboard."""
    if isinstance(dashboard, dict):
        for key, value in dashboard.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(dashboard, list):
        for value in dashboard:
            yield from expressions(value)


def test_dashboard_and_alerts_read_nothing_that_is_not_there(tight: Running) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    complete_all(tight, [[1] * 5], max_tokens=2)
    assert tight.complete([[1] * 60]).status_code == 400
    names = scrape(tight).names
    alerts = (ROOT / "docs" / "operations.md").read_text()
    used = {
        name for query in (*expressions(dashboard), alerts) for name in re.findall(r"headway:\w+|process_\w+", query)
    }

    assert len(used) > 20
    assert sorted(used - names) == []
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_every_exported_metric_is_in_the_documents(tight: Running) -> None:
    assert tight.complete([[1] * 60]).status_code == 400
    document = (ROOT / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"`headway:(\w+)", document))
    exported = {
        family.name.removeprefix("headway:")
        for family in text_string_to_metric_families(tight.http.get("/metrics").text)
        if family.name.startswith("headway:")
    }

    assert sorted(exported ^ documented) == []
