"""Numbers that do not fit the tables are refused before they can break a step that others share."""

from __future__ import annotations

from typing import Any

import numpy as np
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
        ({"deadline_s": float("nan")}, "deadline_s", "must be a finite number, not NaN"),
        ({"deadline_s": float("inf")}, "deadline_s", "must be a finite number, not infinite"),
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


WRONG: dict[str, list[Any]] = {
    "request_id": [None, 1, b"a", ["a"], "\ud800"],
    "sampling": [{}, "greedy", 1, [SamplingParams()]],
    "priority": [None, 1.0, "1", True, float("nan"), [1]],
    "cache_salt": [None, 1, b"salt", {"a"}, "\udfff"],
    "tenant": [None, 1, b"anna", ["anna"], {"anna": 1}, "\ud800"],
    "deadline_s": ["1", True, [1.0], {}, 1j, float("-inf")],
    "slo": [None, 1, ["batch"], "Batch"],
    "prompt": [None, 1, 1.5, [1.0], [None], [1, None], ["1"], [[1]], [True], [1, False], {1}, {1: 2}, b"ab", object(),
               np.array([[1]]), np.array([1.0]), np.array([True]), [2**70], [-1], [2**31], [1, [2]]],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_every_wish_of_the_wrong_kind_is_refused_by_its_name(name: str, value: Any) -> None:
    engine = make_engine(ScriptedExecutor(echo))
    wishes: dict[str, Any] = {"prompt": [1, 2], "request_id": "a", name: value}

    with pytest.raises(RequestRefused) as refusal:
        engine.prepare(**wishes)

    assert refusal.value.field == name
    assert engine.metrics.counters.requests_refused == {name: 1}


def test_numbers_of_numpy_and_any_sequence_are_taken() -> None:
    engine = make_engine(ScriptedExecutor(echo))
    sampling = SamplingParams(stop_token_ids=[5], max_tokens=np.int64(3), seed=np.uint8(1))  # type: ignore[arg-type]
    wishes: dict[str, Any] = {"priority": np.int8(2), "deadline_s": np.float32(0.5), "tenant": np.str_("anna")}

    for place, prompt in enumerate(([1, 2], (1, 2), range(1, 3), np.array([1, 2], np.uint8), [np.int64(1), 2])):
        engine.add(engine.prepare(prompt, sampling, request_id=str(place), **wishes))  # type: ignore[arg-type]
    reports = []
    while engine.has_work:
        reports.append(engine.advance())

    outputs = [update.output for report in reports for update in report.updates if update.output is not None]
    assert len(outputs) == 5
    assert {output.prompt_token_ids for output in outputs} == {(1, 2)}
    assert all(len(output.outputs[0].token_ids) == 3 for output in outputs)
