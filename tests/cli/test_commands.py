"""The commands that need no model, and what they say about input that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import headway
from headway.cli.bench import BENCHMARKS, benchmarks_folder
from headway.cli.main import app
from tests.cli.builders import record


def run(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text(record())
    return path


def test_version() -> None:
    assert run("version").output == f"headway {headway.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv[1:] = ['generate', '--help']\nfrom headway.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'matplotlib'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stderr == "[]\n"
    assert "--max-num-batched-tokens" in answer.stdout


@pytest.mark.usefixtures("nothing_to_fetch")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "a", "--temperature", "-1"], "temperature=-1.0 is not usable: must be at least 0.0"),
        (["generate", "a", "--num-blocks", "0"], "num_blocks=0 is not usable: must be at least 1 blocks"),
        (["generate", "a", "--scheduling-policy", "lifo"], "must be one of fcfs, priority"),
        (["generate", "a", "--file", "b"], "file='b' is not usable: must be left out if prompts are given"),
        (["generate", "--file", "no-such-file"], "file='no-such-file' is not usable: cannot be read"),
        (["generate", "--format", "xml"], "format='xml' is not usable"),
        (["generate"], "standard input: has no prompts"),
        (["generate", "a", "--output", "no-such-folder/x"], "there is no such folder"),
        (["generate", "a", "--trace", "no-such-folder/x"], "there is no such folder"),
        (["generate", "a", "--model", "smollm"], "model 'smollm' not found: did you mean 'smollm2-135m'?"),
        (["models", "pull", "smollm"], "model 'smollm' not found: did you mean 'smollm2-135m'?"),
        (["draw", "no-such-file"], "trace='no-such-file' is not usable: there is no such file"),
        (["bench", "everything"], "bench='everything' is not usable: must be one of scheduler, engine"),
        (["demo", "--num-blocks", "0"], "num_blocks=0 is not usable"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run(*arguments)

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("headway: ")
    assert result.stderr.count("\n") == 1


def test_unknown_flags_are_refused() -> None:
    result = run("generate", "a", "--temprature", "1")

    assert result.exit_code == 2
    assert "--temprature" in result.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("headway.cli.timeline.read_timeline", broken)

    assert isinstance(run("draw", trace).exception, KeyError)


def test_models_list_names_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))

    lines = run("models", "list").output.splitlines()

    found = next(line.split() for line in lines if line.startswith("smollm2-135m"))
    assert (found[-3:], "Apache-2.0" in found) == (["98", "MB", "no"], True)


def test_draw_puts_the_picture_beside_the_trace(trace: Path) -> None:
    result = run("draw", trace)

    assert result.exit_code == 0
    assert trace.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "4 requests" in result.output


def test_draw_says_where_a_trace_is_broken(trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text()[:-20])

    result = run("draw", trace, "--output", tmp_path / "x.png")

    assert result.exit_code == 2
    assert "was the writer cut off?" in result.stderr
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_bench_runs_the_files_of_a_checkout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def call(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("headway.cli.bench.subprocess.run", call)

    assert run("bench", name, "--quick", "-x", "1").exit_code == 3
    script = benchmarks_folder() / BENCHMARKS[name]
    assert calls == [[sys.executable, str(script), "--quick", "-x", "1"]]
    assert script.is_file()


def test_bench_says_where_benchmarks_are_if_this_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.cli.bench.benchmarks_folder", lambda: tmp_path)

    result = run("bench", "scheduler")

    assert result.exit_code == 2
    assert "benchmarks/scheduler_overhead.py" in result.stderr
