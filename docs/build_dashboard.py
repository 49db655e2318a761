"""Writes docs/grafana-dashboard.json, a dashboard over the metrics of docs/metrics.md; run by ``make docs``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("grafana-dashboard.json")

SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 8, 7
PER_LINE = 24 // WIDTH
QUANTILES = (0.5, 0.9, 0.99)

Query = tuple[str, str]
"""An expression and how its lines are called."""


def select(name: str, **labels: str) -> str:
    """A metric of the chosen models."""
    more = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f'headway:{name}{{model_name=~"$model"{more}}}'


def rate(name: str, by: str = "") -> str:
    """How fast a counter rises, added up but for the label ``by``."""
    return f"sum{f' by ({by})' if by else ''} (rate({select(name)}[$__rate_interval]))"


def quantiles(name: str) -> list[Query]:
    """Quantiles of a histogram over the interval."""
    return [
        (f"histogram_quantile({level}, {rate(f'{name}_bucket', 'le')})", f"p{level * 100:g}") for level in QUANTILES
    ]


def mean(name: str, by: str = "") -> str:
    """The mean of a histogram over the interval."""
    return f"{rate(f'{name}_sum', by)} / {rate(f'{name}_count', by)}"


def total(name: str, by: str = "") -> str:
    """A gauge, added up but for the label ``by``."""
    return f"sum{f' by ({by})' if by else ''} ({select(name)})"


Panel = tuple[str, str, str, bool, Sequence[Query]]
"""Title, what to see in it, unit, whether lines are stacked, queries."""

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "What clients feel",
        (
            (
                "Time to first token",
                "From arrival to the first token.",
                "s",
                False,
                quantiles("time_to_first_token_seconds"),
            ),
            ("Between tokens", "From one token to the next.", "s", False, quantiles("inter_token_latency_seconds")),
            ("Whole requests", "From arrival to the end.", "s", False, quantiles("e2e_request_latency_seconds")),
            ("In the queue", "From arrival to the first slot.", "s", False, quantiles("request_queue_time_seconds")),
            (
                "In prefill",
                "From the first slot to the first token.",
                "s",
                False,
                quantiles("request_prefill_time_seconds"),
            ),
            ("In decode", "From the first token to the last.", "s", False, quantiles("request_decode_time_seconds")),
        ),
    ),
    (
        "Load",
        (
            (
                "Requests",
                "Waiting for long means that the server is at its capacity.",
                "short",
                True,
                [
                    (total("num_requests_running"), "running"),
                    (total("num_requests_waiting"), "waiting"),
                    (total("num_requests_swapped"), "of these on the host"),
                ],
            ),
            (
                "Why requests wait",
                "docs/operations.md says what to do about each reason.",
                "short",
                True,
                [(total("num_requests_waiting_by_reason", "reason"), "{{reason}}")],
            ),
            (
                "Turned away",
                "Calls that admission refused (503), by limit; requests that can never be served, by field.",
                "reqps",
                True,
                [
                    (rate("admission_rejections_total", "reason"), "{{reason}}"),
                    (rate("requests_refused_total", "field"), "never: {{field}}"),
                ],
            ),
            (
                "Tokens per second",
                "Prompt tokens count when their request starts.",
                "short",
                False,
                [
                    (rate("prompt_tokens_total"), "prompt"),
                    (rate("generation_tokens_total"), "generated"),
                    (rate("computed_tokens_total"), "computed"),
                ],
            ),
            (
                "Ends",
                "By how the client saw it.",
                "reqps",
                True,
                [(rate("request_success_total", "finished_reason"), "{{finished_reason}}")],
            ),
            (
                "In admission",
                "What the two limits of the server count.",
                "short",
                False,
                [
                    (total("admission_requests"), "requests"),
                    (total("admission_prompt_tokens"), "prompt tokens in prefill"),
                    (total("admission_limit", "what"), "limit: {{what}}"),
                ],
            ),
        ),
    ),
    (
        "KV memory",
        (
            (
                "Usage",
                "Blocks that requests hold. Near 1, requests are preempted.",
                "percentunit",
                False,
                [(f"max({select('kv_cache_usage_perc')})", "usage")],
            ),
            (
                "Blocks",
                "Cached blocks are free, and a prefix can still find them.",
                "short",
                True,
                [
                    (total("kv_cache_blocks", "state"), "{{state}}"),
                    (f"sum ({select('host_cache_blocks', state='held')})", "held on the host"),
                ],
            ),
            (
                "Prefix cache",
                "Share of prompt tokens found; a preempted request's own work does not count.",
                "percentunit",
                False,
                [
                    (f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", "hit rate"),
                    (f"{rate('prompt_tokens_cached_total')} / {rate('prompt_tokens_total')}", "not computed"),
                ],
            ),
            (
                "Preemptions",
                "By kind and cause.",
                "ops",
                True,
                [(rate("num_preemptions_total", "kind, cause"), "{{kind}}, {{cause}}")],
            ),
            (
                "What preemptions cost",
                "Tokens per second that are computed twice.",
                "short",
                False,
                [
                    (rate("preemption_lost_tokens_total", "cause"), "given up: {{cause}}"),
                    (rate("recomputed_tokens_total"), "computed again"),
                    (rate("restored_tokens_total"), "copied back"),
                    (rate("resumed_prefix_cache_hits_total"), "found again in the cache"),
                ],
            ),
            (
                "Resident",
                "KV memory that is taken; it grows with use, up to what is reserved.",
                "bytes",
                False,
                [
                    (total("kv_resident_bytes", "tier"), "resident: {{tier}}"),
                    (total("kv_reserved_bytes", "tier"), "reserved: {{tier}}"),
                ],
            ),
            (
                "Evictions",
                "Cached blocks taken for other content.",
                "ops",
                False,
                [(rate("kv_cache_evictions_total"), "blocks")],
            ),
        ),
    ),
    (
        "Steps",
        (
            ("Parts of a step", "Mean time by part.", "s", True, [(mean("step_phase_seconds", "phase"), "{{phase}}")]),
            (
                "Tokens per step",
                "Near the budget, prompts wait for each other.",
                "short",
                False,
                [(mean("iteration_tokens_total"), "mean"), *quantiles("iteration_tokens_total")[-1:]],
            ),
            (
                "Steps per second",
                "Failed steps end their requests with an error.",
                "ops",
                False,
                [(rate("steps_total"), "steps"), (rate("steps_failed_total"), "failed")],
            ),
            (
                "Rows without a token",
                "Running requests that a step left out, by why.",
                "short",
                True,
                [(total("num_requests_unserved_by_reason", "reason"), "{{reason}}")],
            ),
            (
                "Signs of life",
                "A busy engine whose last step is old is stuck; old numbers mean that it does not answer.",
                "s",
                False,
                [
                    (f"max ({select('last_step_age_seconds')})", "since the last step"),
                    (f"max ({select('snapshot_age_seconds')})", "age of these numbers"),
                ],
            ),
            (
                "Process",
                "Memory and processor of the server.",
                "bytes",
                False,
                [("process_resident_memory_bytes", "memory")],
            ),
        ),
    ),
    (
        "What is asked",
        (
            ("Prompts", "Tokens.", "short", False, quantiles("request_prompt_tokens")),
            ("Outputs", "Tokens.", "short", False, quantiles("request_generation_tokens")),
            (
                "Settings",
                "Means.",
                "short",
                False,
                [
                    (mean("request_params_n"), "n"),
                    (mean("request_params_max_tokens"), "max_tokens"),
                    (mean("request_num_preemptions"), "preemptions of a request"),
                ],
            ),
        ),
    ),
)


def panel(number: int, place: int, top: int, content: Panel) -> dict[str, Any]:
    """One chart."""
    title, description, unit, stacked, queries = content
    custom = {"fillOpacity": 25 if stacked else 5, "showPoints": "never"}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {
            "h": HEIGHT,
            "w": WIDTH,
            "x": place % PER_LINE * WIDTH,
            "y": top + place // PER_LINE * HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def panels() -> list[dict[str, Any]]:
    """All charts under the headings of their rows."""
    found: list[dict[str, Any]] = []
    top = 0
    for heading, contents in ROWS:
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        found.append(
            {"id": len(found) + 1, "type": "row", "title": heading, "collapsed": False, "gridPos": place, "panels": []}
        )
        top += 1
        found += [panel(len(found) + 1 + index, index, top, content) for index, content in enumerate(contents)]
        top += -(-len(contents) // PER_LINE) * HEIGHT
    return found


def render() -> str:
    """The whole dashboard."""
    models = "label_values(headway:num_requests_running, model_name)"
    dashboard = {
        "uid": "headway",
        "title": "Headway",
        "description": "Latency, load, KV memory and steps of Headway servers.",
        "tags": ["headway", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "model",
                    "label": "Model",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": models, "refId": "models"},
                    "definition": models,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels(),
    }
    return json.dumps(dashboard, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
