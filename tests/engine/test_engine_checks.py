"""Numbers that do not fit the tables are refused before they can break a step that others share."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import SamplingParams
from headway.core.request import RequestRefused
from tests.engine.builders import VOCAB_SIZE, ScriptedExecutor, echo, make_engine


@pytest.mark.parametrize(
    ("sampling", "priority", "field", "limit"),
    [
        (SamplingParams(stop_token_ids=(2**40,)), 0, "stop_token_ids", VOCAB_SIZE - 1),
        (SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), 0, "logit_bias", VOCAB_SIZE - 1),
        (SamplingParams(max_tokens=None, min_tokens=2**40), 0, "min_tokens", 127),
        (SamplingParams(), 2**63, "priority", 2**31 - 1),
        (SamplingParams(), -(2**63), "priority", 2**31 - 1),
    ],
)
def test_numbers_beyond_the_tables_are_refused(sampling: SamplingParams, priority: int, field: str, limit: int) -> None:
    engine = make_engine(ScriptedExecutor(echo))

    with pytest.raises(RequestRefused) as refusal:
        engine.prepare([1, 2], sampling, request_id="a", priority=priority)

    assert (refusal.value.field, refusal.value.limit) == (field, limit)


def test_the_largest_numbers_that_fit_do_run() -> None:
    engine = make_engine(ScriptedExecutor(echo), scheduling_policy="priority")
    sampling = SamplingParams(
        max_tokens=2**60, min_tokens=126, stop_token_ids=(VOCAB_SIZE - 1,), top_k=2**62, seed=2**64 - 1
    )

    engine.add(engine.prepare([1], sampling, request_id="a", priority=2**31 - 1))
    engine.add(engine.prepare([1], SamplingParams(), request_id="b", priority=-(2**31) + 1))
    reports = []
    while engine.has_work:
        reports.append(engine.advance())

    ends = {update.request_id: update.output for report in reports for update in report.updates if update.output}
    assert [len(ends[name].outputs[0].token_ids) for name in "ab"] == [
        126,
        16,
    ]  # end-of-text counts only from min_tokens on


@pytest.mark.parametrize(
    ("wishes", "field", "message"),
    [
        ({"deadline_s": 0.0}, "deadline_s", "above 0"),
        ({"deadline_s": float("nan")}, "deadline_s", "above 0"),
        ({"deadline_s": float("inf")}, "deadline_s", "above 0"),
        ({"slo": "soon"}, "slo", "must be one of interactive, standard, batch"),
    ],
)
def test_deadlines_that_order_nothing_are_refused(wishes: dict[str, Any], field: str, message: str) -> None:
    engine = make_engine(ScriptedExecutor(echo), scheduling_policy="deadline")

    with pytest.raises(RequestRefused, match=message) as refusal:
        engine.prepare([1, 2], request_id="a", **wishes)

    assert refusal.value.field == field


def test_what_a_policy_looks_at_reaches_the_request() -> None:
    engine = make_engine(ScriptedExecutor(echo))
    wishes: dict[str, Any] = {"tenant": "anna", "deadline_s": 2.5, "slo": "batch", "priority": 3}

    prompt = engine.prepare([1, 2], request_id="a", **wishes).request
    chat = engine.prepare_chat([{"role": "user", "content": "hi"}], request_id="b", **wishes).request

    for request in (prompt, chat):
        assert {name: getattr(request, name) for name in wishes} == wishes
