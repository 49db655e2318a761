"""The demonstration shows chunking, prefix hits and preemption, and says so if it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli import demo
from headway.cli.main import app
from headway.cli.prompts import Job
from headway.config import SamplingParams

TIGHT = ["--max-num-batched-tokens", "32", "--max-num-seqs", "6", "--num-blocks", "24", "--max-model-len", "256"]
SHARED = "The quick brown fox jumps over the lazy dog, and the other fox rests in the sun. "


def small_jobs() -> list[Job]:
    """A long prompt, prompts with a common beginning, short ones that grow."""
    texts = ["x" * 90, SHARED + "Why?", SHARED + "When?", "one", "two", "three", SHARED + "Who?"]
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    return [
        Job(f"job-{number}", f"job-{number}", sampling, messages=({"role": "user", "content": text},))
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "demo_jobs", small_jobs)


def run(model: Path, out: Path, *limits: str) -> Result:
    return CliRunner().invoke(app, ["demo", "--model", str(model), "--out", str(out), *TIGHT, *limits])


@pytest.mark.usefixtures("small_demo")
def test_all_three_are_shown_and_written(tiny_model: Path, tmp_path: Path) -> None:
    result = run(tiny_model, tmp_path / "out")

    assert result.exit_code == 0, result.output
    for sentence in ("shown chunking: ", "shown prefix hits: ", "shown preemption: ", "KV memory: 24 blocks"):
        assert sentence in result.output
    records = [json.loads(line) for line in (tmp_path / "out" / "demo.jsonl").read_text().splitlines()]
    assert [one["request_id"] for one in records] == [f"job-{number}" for number in range(7)]
    assert all(one["request_id"] in result.output for one in records)
    assert sum(one["metrics"]["num_preemptions"] for one in records) > 0
    assert sum(one["metrics"]["num_cached_tokens"] for one in records) > 0
    assert max(one["metrics"]["num_chunks"] for one in records) > 2
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small_demo")
def test_what_is_not_shown_is_status_1(tiny_model: Path, tmp_path: Path) -> None:
    result = run(tiny_model, tmp_path, "--num-blocks", "200")

    assert result.exit_code == 1
    assert "missing preemption: no request was preempted" in result.output
    assert "shown prefix hits" in result.output


@pytest.mark.usefixtures("small_demo")
def test_pressure_changes_no_text(tiny_model: Path, tmp_path: Path) -> None:
    def texts(folder: Path) -> list[str]:
        return [json.loads(line)["text"] for line in (folder / "demo.jsonl").read_text().splitlines()]

    run(tiny_model, tmp_path / "tight")
    run(tiny_model, tmp_path / "roomy", "--num-blocks", "200", "--no-enable-prefix-caching")

    assert texts(tmp_path / "tight") == texts(tmp_path / "roomy")


@pytest.mark.usefixtures("small_demo")
def test_equal_runs_write_equal_traces(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tiny_model, tmp_path / name)

    first, second = ((tmp_path / name / "demo.trace.jsonl").read_bytes() for name in ("a", "b"))
    assert first == second


def test_the_prompts_are_what_the_demo_needs() -> None:
    jobs = demo.demo_jobs()

    assert len(jobs) == 24
    assert len({job.request_id for job in jobs}) == 24
    assert all(job.messages and job.messages[-1]["role"] == "user" for job in jobs)
    systems = [job.messages[0]["content"] for job in jobs if job.messages and job.messages[0]["role"] == "system"]
    assert len(systems) >= 5 and len(set(systems)) == 1
    words = sorted(sum(len(message["content"].split()) for message in job.messages or ()) for job in jobs)
    assert words[0] < 10
    assert words[-1] > 900


def test_every_document_is_asked_about() -> None:
    content = json.loads((Path(demo.__file__).with_name("demo_prompts.json")).read_text())

    used = {entry.get("system") for entry in content["requests"]} | {
        entry.get("document") for entry in content["requests"]
    }
    assert set(content["texts"]) == used - {None}
