"""The tables fit the terminal and say everything."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headway.cli.report import request_tables, summarize
from headway.engine.outputs import CompletionOutput, RequestError, RequestMetrics, RequestOutput
from tests.cli.builders import record, timeline_of


def output(request_id: str, text: str = "some words", **changes: object) -> RequestOutput:
    numbers = {
        "arrival_s": 10.0, "queue_s": 0.5, "ttft_s": 1.25, "tpot_s": 0.0305, "e2e_s": 4.0, "num_prompt_tokens": 1000,
        "num_output_tokens": 20, "num_cached_tokens": 250, "num_chunks": 3, "num_preemptions": 2, **changes,
    }  # fmt: skip
    return RequestOutput(
        request_id, None, (), (CompletionOutput(text, (), "length"),), metrics=RequestMetrics(**numbers)
    )  # type: ignore[arg-type]


def refused(request_id: str) -> RequestOutput:
    error = RequestError("refused", "the prompt is too long")
    return RequestOutput(request_id, None, (), (CompletionOutput("", (), "refused"),), error=error)


def printed(outputs: list[RequestOutput], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for table in request_tables(outputs, width):
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 100, 150, 200])
def test_tables_fit_and_texts_are_cut_to_the_room(width: int) -> None:
    lines = printed([output("a-long-name-here", "word " * 100), refused("bad")], width)

    assert max(map(len, lines)) <= width
    assert len([line for line in lines if "\u2026" in line]) == 1
    assert any("the prompt is too long" in line for line in lines)
    numbers = next(line for line in lines if line.startswith("a-long-name-here")).split()
    assert numbers[1:10] == ["0.50", "1,250", "30.5", "1,000", "250", "3", "20", "2", "length"]


def test_a_run_is_added_up() -> None:
    timeline = timeline_of(record())

    summary = summarize([output("a"), output("b", arrival_s=11.0, e2e_s=6.0), refused("c")], timeline)

    assert summary.seconds == 7.0
    assert (summary.num_prompt_tokens, summary.num_output_tokens, summary.num_preemptions) == (2000, 40, 4)
    assert summary.hit_rate == 0.25
    assert summary.num_computed_tokens == sum(step.num_decode + step.num_prefill for step in timeline.steps)
    assert summary.num_again == sum(line.num_again for line in timeline.requests) > 0
