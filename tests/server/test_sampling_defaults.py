"""The model's sampling defaults over HTTP: they hold for what a body leaves out, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headway.config import SamplingParams
from headway.core.plan import StepPlan
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import Running, serving

DEFAULTS = {"temperature": 0.5, "top_k": 20, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.2, "max_tokens": 7}


class Watched(ScriptedExecutor):
    """Keeps the parameters of the last request."""

    last: SamplingParams

    def submit(self, plan: StepPlan) -> None:
        for row in plan.admitted:
            self.last = row.sampling
        super().submit(plan)


@pytest.fixture(scope="module")
def executor() -> Watched:
    return Watched(echo)


@pytest.fixture(scope="module")
def server(executor: Watched) -> Iterator[Running]:
    with serving(executor) as running:
        running.engine.sampling_defaults = DEFAULTS
        yield running


def asked(executor: Watched, *names: str) -> dict[str, Any]:
    return {name: getattr(executor.last, name) for name in names or DEFAULTS}


def test_a_chat_takes_all_of_them(server: Running, executor: Watched) -> None:
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})

    assert asked(executor) == DEFAULTS


def test_a_completion_takes_all_but_its_length(server: Running, executor: Watched) -> None:
    server.complete("abc")

    assert asked(executor) == {**DEFAULTS, "max_tokens": 16}


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_p": 1, "min_p": 0, "repetition_penalty": 1}, {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}),
        ({"temperature": None}, {}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"max_completion_tokens": 4}, {"max_tokens": 4}),
    ],
    ids=str,
)
def test_what_a_body_says_goes_before(
    server: Running, executor: Watched, given: dict[str, Any], held: dict[str, Any]
) -> None:
    response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **given})

    assert response.status_code == 200
    assert asked(executor) == {**DEFAULTS, **held}
