"""``headway generate``: prompts in, completions out, in the order of the prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.flags import engine_panel, flags_of
from headway.cli.prompts import Job, PromptError, jobs_of_lines, jobs_of_texts
from headway.config import ConfigError, EngineOptions, SamplingParams
from headway.config.files import writable_file

if TYPE_CHECKING:
    from headway.engine.outputs import RequestOutput

DEFAULT_MODEL = "smollm2-135m"
FORMATS = ("auto", "text", "jsonl")
SERVER_ONLY = ("max_num_queued_reqs", "max_num_queued_tokens")
"""Options that mean nothing where nobody else sends requests."""

REFUSED_OR_FAILED = 2


@flags_of("sampling", SamplingParams, "Sampling", exclude=("seed",))  # --seed is the engine's; lines may have their own
@flags_of("engine", EngineOptions, engine_panel, exclude=("model", *SERVER_ONLY))
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, standard input is read.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read prompts from a file: one per line, or JSON lines.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="What file or standard input holds.")
    ] = "auto",
    model: Annotated[
        str, typer.Option("--model", "-m", help="A model's alias, folder, GGUF file or hub name.")
    ] = DEFAULT_MODEL,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take each prompt as a user's message in a conversation.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write JSON lines, one per prompt, to this file; - is stdout.")
    ] = None,
    *,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Complete prompts, or answer them with --chat. Results come in the order of the prompts.

    JSON lines have "prompt", "prompt_token_ids" or "messages", perhaps a "request_id", a "priority", "tenant",
    "deadline_s", "slo" or "cache_salt", and any sampling parameter by its name (for example "max_tokens"), which goes
    before the flag.
    """
    jobs = read_jobs(prompts or [], file, form, sampling, chat=chat)
    if not jobs:
        raise PromptError(str(file or "standard input"), "has no prompts")
    options = EngineOptions(model=model, **engine)
    failed = False
    with _writer(output, len(jobs)) as write:
        for job, done in zip(jobs, _generate(options, jobs), strict=True):
            write(done)
            if done.error is not None:
                failed = True
                typer.echo(f"headway: {job.where}: {done.error.message}", err=True)
    if failed:
        raise typer.Exit(REFUSED_OR_FAILED)


def _generate(options: EngineOptions, jobs: Sequence[Job]) -> Iterator[RequestOutput]:
    """Outputs in the order of the jobs, each as soon as all before it are there."""
    from headway.cli.runner import generation_progress, in_order, open_engine, run_jobs

    engine = open_engine(options)
    try:
        with generation_progress(engine, len(jobs)) as report:
            for _, output in in_order(run_jobs(engine, jobs, report)):
                yield output
    finally:
        engine.close()


def read_jobs(
    prompts: Sequence[str], file: Path | None, form: str, sampling: Mapping[str, Any], *, chat: bool
) -> list[Job]:
    """Jobs out of arguments, a file or standard input.

    Raises:
        ConfigError, PromptError: what was given cannot be read.
    """
    if form not in FORMATS:
        raise ConfigError("format", form, f"must be one of {', '.join(FORMATS)}")
    if prompts:
        if file is not None:
            raise ConfigError("file", str(file), "must be left out if prompts are given")
        return jobs_of_texts(prompts, sampling, chat=chat)
    if file is None:
        return jobs_of_lines(sys.stdin.readlines(), sampling, chat=chat, form=form)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(file), f"cannot be read ({error})") from error
    return jobs_of_lines(lines, sampling, chat=chat, form=form)


@contextmanager
def _writer(output: str | None, num_jobs: int) -> Iterator[Callable[[RequestOutput], None]]:
    """What to call with every output, in order: JSON lines into a file, or texts for people."""
    if output is None:
        yield partial(_print_text, several=num_jobs > 1)
    elif output == "-":
        yield partial(_write_record, sys.stdout)
    else:
        with writable_file("output", Path(output)).open("w", encoding="utf-8") as file:
            yield partial(_write_record, file)


def _write_record(file: IO[str], output: RequestOutput) -> None:
    from headway.cli.runner import record_of

    file.write(json.dumps(record_of(output), ensure_ascii=False) + "\n")
    file.flush()  # what is done survives if the rest is interrupted


def _print_text(output: RequestOutput, *, several: bool) -> None:
    if several:
        typer.secho(f"--- {output.request_id} ({output.finish_reason})", dim=True)
    typer.echo(output.text)
