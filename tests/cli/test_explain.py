"""The life of a request in words: everything that happened to it, in order, and why it waited."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headway.cli.life import Life, Moment
from headway.cli.main import app
from headway.cli.replay import Replay
from headway.engine.trace import TraceReader
from tests.cli.builders import PROMPTS, record


def life_of(request_id: str, trace: str) -> list[Moment]:
    reader = TraceReader(io.StringIO(trace))
    life = Life(request_id, reader.header.scheduler, reader.header.cache)
    life.follow(Replay(reader))
    return life.moments


def told(request_id: str, **options: Any) -> list[str]:
    return [f"{moment.steps}: {moment.text}" for moment in life_of(request_id, record(**options))]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_a_quiet_life() -> None:
    assert told("short") == [
        "step 0: Arrives with a prompt of 3 tokens.",
        "step 1: Starts in slot 0: 3 tokens to compute.",
        "step 1: Computes 3 tokens of its prompt (all at once); samples a token.",
        "steps 2 to 12: Decodes: 11 tokens.",
        "step 12: Ends with 12 tokens of output: it has all tokens it may have.",
    ]


def test_chunks_are_told_one_by_one() -> None:
    chunks = [line for line in told("long") if "Computes" in line]

    assert chunks[0] == "step 1: Computes 9 tokens of its prompt (1 to 9 of 40)."
    assert chunks[-1] == "step 4: Computes 9 tokens of its prompt (32 to 40 of 40); samples a token."


def test_waits_have_their_reason_and_what_ends_them() -> None:
    lines = told("second")

    assert lines[1].startswith("steps 1 to 3: Waits: behind others in the queue. 1 request is before it in the queue.")
    assert lines[2].startswith("steps 4 to 6: Waits: its prefix is being computed.")
    assert "request first" in lines[2]
    assert lines[3] == "step 7: Starts in slot 3: 16 tokens found in the prefix cache, 1 token to compute."
    assert lines[4] == "step 7: Computes 1 token of its prompt (the last of 17); samples a token."


def test_a_preemption_names_its_cause_and_its_price() -> None:
    lines = told("first")

    (lost,) = (place for place, line in enumerate(lines) if "preempted (recompute)" in line)
    assert lines[lost] == (
        "step 10: Is preempted (recompute) because request short needs KV blocks to grow: the KV of its 20 tokens is"
        " given up, as far as nobody else needs it."
    )
    assert "not enough KV blocks" in lines[lost + 1]
    assert lines[lost + 2] == (
        "step 13: Comes back in slot 0: 16 tokens found in the prefix cache, 5 tokens to compute, 4 of them a second"
        " time."
    )
    assert lines[lost + 3].startswith("step 13: Computes 5 tokens of its prompt and output so far (17 to 21 of 21)")
    assert lines[-1].endswith("preempted once: it has all tokens it may have.")


def test_a_swap_says_what_was_copied() -> None:
    options = {"num_host_blocks": 30, "preemption_mode": "swap", "enable_prefix_caching": False}
    lines = [line for name in PROMPTS for line in told(name, num_blocks=18, **options)]

    swapped = [line for line in lines if "Is preempted (swap)" in line]
    back = [line for line in lines if "copied back from the host" in line]
    assert len(swapped) == len(back) > 0
    assert all("its KV is kept on the host" in line and "copied." in line for line in swapped)
    assert all("Comes back in slot" in line for line in back)


def test_predictions_are_told_if_there_were_any() -> None:
    lines = record(num_host_blocks=30, num_blocks=18).splitlines()
    timed = [json.loads(line) for line in lines]
    for line in timed:
        if line["kind"] == "result":
            line |= {"forward_s": 0.01, "copy_s": 0.001}
    moments = []
    for name in PROMPTS:
        moments += life_of(name, "".join(json.dumps(line) + "\n" for line in timed))

    costs = [moment.text for moment in moments if "Predicted cost" in moment.text]
    assert costs
    assert " ms to compute again" in costs[0]


def test_an_abort_is_told_by_who_asked_for_it() -> None:
    lines = told("long", abort_at={5: "long"})

    assert lines[-1] == "step 5: Ends with 2 tokens of output: its client gave it up."


def test_the_command_prints_a_line_per_moment(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(record())

    answer = run(path, "short")

    assert answer.exit_code == 0
    assert answer.output.splitlines()[:2] == [
        "step 0         Arrives with a prompt of 3 tokens.",
        "step 1         Starts in slot 0: 3 tokens to compute.",
    ]


def test_without_a_request_all_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(record())

    assert run(path).output.splitlines() == list(PROMPTS)


@pytest.mark.parametrize(
    ("request_id", "sentence"),
    [("shirt", "did you mean short?"), ("zzz", "the trace has 4 requests; leave it out for a list")],
)
def test_a_request_that_is_not_there_is_named(tmp_path: Path, request_id: str, sentence: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(record())

    answer = run(path, request_id)

    assert answer.exit_code == 2
    assert sentence in answer.output


def test_a_file_that_is_not_there_is_named() -> None:
    answer = run("no-such-file", "a")

    assert answer.exit_code == 2
    assert "trace='no-such-file' is not usable: there is no such file" in answer.output
