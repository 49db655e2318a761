"""Tables about a run, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from headway.cli.timeline import Timeline
from headway.engine.outputs import RequestMetrics, RequestOutput

NUMBERS_WIDTH = 68
"""Columns of the request table without names and texts."""
LEAST_TEXT = 30
"""Texts shorter than this are left out of it."""


@dataclass(frozen=True)
class Summary:
    """A whole run in numbers.

    Attributes:
        seconds: from the first arrival to the last end.
        num_prompt_tokens, num_cached_tokens: of all requests, and those of them that were found in the prefix cache
            at a request's first admission.
        num_output_tokens: delivered.
        num_steps: steps with rows.
        num_computed_tokens, num_again: tokens computed in all, and those of them that a preemption had thrown away.
        num_preemptions: of all requests.
    """

    seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_computed_tokens: int
    num_again: int
    num_preemptions: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that did not have to be computed."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0


def summarize(outputs: Sequence[RequestOutput], timeline: Timeline) -> Summary:
    """Add up a run; refused requests do not count."""
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    start = min((one.arrival_s for one in metrics), default=0.0)
    return Summary(
        seconds=max((one.arrival_s + one.e2e_s for one in metrics), default=start) - start,
        num_prompt_tokens=sum(one.num_prompt_tokens for one in metrics),
        num_cached_tokens=sum(one.num_cached_tokens for one in metrics),
        num_output_tokens=sum(one.num_output_tokens for one in metrics),
        num_steps=len(timeline.steps),
        num_computed_tokens=sum(step.num_decode + step.num_prefill for step in timeline.steps),
        num_again=sum(line.num_again for line in timeline.requests),
        num_preemptions=sum(one.num_preemptions for one in metrics),
    )


def summary_table(summary: Summary) -> Table:
    """Two columns, names and numbers."""
    table = Table(box=None, show_header=False, pad_edge=False)
    rate = summary.num_output_tokens / summary.seconds if summary.seconds else 0.0
    table.add_row("time", f"{summary.seconds:.1f} s, {summary.num_steps:,} steps")
    table.add_row("output", f"{summary.num_output_tokens:,} tokens, {rate:.1f} tokens/s")
    table.add_row(
        "prompts",
        f"{summary.num_prompt_tokens:,} tokens, {summary.num_cached_tokens:,} of them from the prefix cache:"
        f" hit rate {summary.hit_rate:.0%}",
    )
    table.add_row(
        "computed",
        f"{summary.num_computed_tokens:,} tokens, {summary.num_again:,} of them again after"
        f" {summary.num_preemptions} preemption{'' if summary.num_preemptions == 1 else 's'}",
    )
    return table


def request_tables(outputs: Sequence[RequestOutput], width: int) -> list[Table]:
    """A line per request, in the order given, ``width`` columns at most; texts come in a table of their own if it is
    narrow, and are cut to what room there is."""
    names = max((len(output.request_id) for output in outputs), default=0)
    room = width - NUMBERS_WIDTH - names
    apart = room < LEAST_TEXT
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\nrequest", no_wrap=True)
    for heading in ("queue\ns", "TTFT\nms", "TPOT\nms", "prompt", "cached", "chunks", "output", "pre-\nempted"):
        table.add_column(heading if "\n" in heading else f"\n{heading}", justify="right", no_wrap=True)
    table.add_column("\nend", no_wrap=True)
    if not apart:
        table.add_column("\ntext", no_wrap=True)
    for output in outputs:
        cells = [output.request_id, *_number_cells(output.metrics), output.finish_reason]
        table.add_row(*cells, *([] if apart else [Text(shortened(output, room))]))
    return [table, _text_table(outputs, width - names - 1)] if apart else [table]


def _text_table(outputs: Sequence[RequestOutput], room: int) -> Table:
    table = Table("request", "text", box=None, padding=(0, 1, 0, 0), header_style="bold")
    for output in outputs:
        table.add_row(output.request_id, Text(shortened(output, room)))
    return table


def shortened(output: RequestOutput, room: int) -> str:
    """The text of an output, or what went wrong, on one line of at most ``room`` characters."""
    text = " ".join((output.text if output.error is None else output.error.message).split())
    return text if len(text) <= room else text[: room - 1] + "\u2026"


def _number_cells(one: RequestMetrics | None) -> list[str]:
    if one is None:
        return [""] * 8
    return [
        "" if one.queue_s is None else f"{one.queue_s:.2f}",
        _milliseconds(one.ttft_s, 0),
        _milliseconds(one.tpot_s, 1),
        f"{one.num_prompt_tokens:,}",
        f"{one.num_cached_tokens:,}",
        str(one.num_chunks),
        str(one.num_output_tokens),
        str(one.num_preemptions or ""),
    ]


def _milliseconds(seconds: float | None, digits: int) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.{digits}f}"
