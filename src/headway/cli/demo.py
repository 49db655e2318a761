"""``headway demo``: two dozen prompts through a KV memory that is too small for them, and proof of what happened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headway.cli.flags import engine_panel, flags_of
from headway.cli.generate import DEFAULT_MODEL, SERVER_ONLY
from headway.cli.prompts import Job
from headway.config import EngineOptions, SamplingParams
from headway.config.files import writable_folder

if TYPE_CHECKING:
    from headway.cli.findings import Finding
    from headway.cli.timeline import Timeline
    from headway.engine.outputs import RequestOutput

LIMITS: Mapping[str, Any] = {
    "max_num_batched_tokens": 256,
    "max_num_seqs": 12,
    "max_model_len": 2048,
    "block_size": 16,
    "num_blocks": 160,
}
"""Small on purpose: long prompts do not fit a step, and twelve requests do not fit 160 blocks for long."""

SAMPLING: Mapping[str, Any] = {"temperature": 0.0, "frequency_penalty": 0.2}
TABLE_WIDTH = 150
"""Columns, where standard output is no terminal."""

NOT_SHOWN = 1
"""Exit status if one of the things to be shown did not happen."""


@dataclass(frozen=True)
class DemoRun:
    """What a demonstration left behind: outputs in the order of the prompts, and files ``demo.*`` in a folder."""

    outputs: Sequence[RequestOutput]
    timeline: Timeline
    findings: Sequence[Finding]
    files: Sequence[Path]


@flags_of("engine", EngineOptions, engine_panel, exclude=("model", "trace", *SERVER_ONLY))
def demo(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A model's alias, folder, GGUF file or hub name.")
    ] = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option("--out", help="Folder for the picture, the texts and the trace.")] = Path("out"),
    *,
    engine: dict[str, Any],
) -> None:
    """Show chunking, prefix hits and preemption at work.

    Runs 24 prompts at once through a KV memory that is too small for them.

    Writes demo.png, demo.jsonl and demo.trace.jsonl. Exit status 1 means that one of the three did not happen,
    as may be with other limits than the defaults.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    options = EngineOptions(
        model=model, trace=str(writable_folder("out", out) / "demo.trace.jsonl"), **{**LIMITS, **engine}
    )
    run = run_demo(options, demo_jobs(), out, console)
    _report(run, console)
    if any(finding.count == 0 for finding in run.findings):
        raise typer.Exit(NOT_SHOWN)


def run_demo(options: EngineOptions, jobs: Sequence[Job], out: Path, console: Console) -> DemoRun:
    """Run all jobs at once and write what happened.

    Args:
        options: with a trace.
        jobs: in the order of arrival.
        out: folder for the files; must exist.
        console: where the effective limits are said.
    """
    from headway.cli.findings import find_all
    from headway.cli.picture import draw
    from headway.cli.runner import generation_progress, in_order, open_engine, record_of, run_jobs
    from headway.cli.timeline import read_timeline
    from headway.engine.trace import TraceReader

    engine = open_engine(options)
    console.print(f"[bold]{len(jobs)} prompts at once[/bold]; what holds for them:")
    for sentence in engine.limits:
        console.print(f"  {sentence}", highlight=False)
    with generation_progress(engine, len(jobs)) as report:
        outputs = [output for _, output in in_order(run_jobs(engine, jobs, report))]
    engine.close()
    picture, records, trace = out / "demo.png", out / "demo.jsonl", Path(options.trace or "")
    timeline = read_timeline(TraceReader(trace))
    draw(timeline, picture)
    records.write_text(
        "".join(json.dumps(record_of(one), ensure_ascii=False) + "\n" for one in outputs), encoding="utf-8"
    )
    return DemoRun(outputs, timeline, find_all(timeline), (picture, records, trace))


def _report(run: DemoRun, console: Console) -> None:
    from headway.cli.report import request_tables, summarize, summary_table

    for table in request_tables(run.outputs, console.width):
        console.print()
        console.print(table)
    console.print()
    console.print(summary_table(summarize(run.outputs, run.timeline)))
    console.print()
    for finding in run.findings:
        mark = "[bold red]missing[/bold red]" if finding.count == 0 else "[bold green]shown[/bold green]"
        console.print(f"{mark} [bold]{finding.name}[/bold]: {finding.sentence}", highlight=False, soft_wrap=True)
    num_steps = len(run.timeline.steps)
    console.print(f"\n{num_steps} steps were decided again from the trace, all as recorded. Written:", highlight=False)
    for path in run.files:
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def demo_jobs() -> list[Job]:
    """The prompts, out of the package's data file."""
    content = json.loads(resources.files("headway.cli").joinpath("demo_prompts.json").read_text(encoding="utf-8"))
    texts = {name: "\n\n".join(paragraphs) for name, paragraphs in content["texts"].items()}
    return [_job(entry, texts) for entry in content["requests"]]


def _job(entry: Mapping[str, Any], texts: Mapping[str, str]) -> Job:
    """A question, perhaps about a document, perhaps under a system prompt."""
    messages = [{"role": "system", "content": texts[entry["system"]]}] if "system" in entry else []
    document = texts[entry["document"]] + "\n\n" if "document" in entry else ""
    messages.append({"role": "user", "content": document + entry["question"]})
    own = {name: entry[name] for name in ("max_tokens", "min_tokens") if name in entry}
    return Job(entry["id"], entry["id"], SamplingParams(**SAMPLING, **own), messages=tuple(messages))
