"""What a fetch says where there is no terminal: one line per stage, and nothing if nothing is fetched."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headway.cli.fetch import fetch_progress
from headway.cli.main import app
from headway.models import loading
from headway.models.loading import ModelSource, PullProgress


def test_one_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with fetch_progress() as report:
        for done in (0, 50_000_000, 98_000_000):
            report(PullProgress("a-model", "download", done, 98_000_000))
        report(PullProgress("a-model", "unpack", 98_000_000, 100_000_000))

    captured = capsys.readouterr()
    assert captured.err == "downloading a-model (98 MB)\nunpacking a-model (100 MB)\n"
    assert captured.out == ""


def test_nothing_is_said_if_nothing_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    with fetch_progress():
        pass

    assert capsys.readouterr() == ("", "")


def test_pull_prints_where_the_model_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("models") / "model.gguf"

    def pull(name: str, progress: loading.ProgressCallback) -> ModelSource:
        progress(PullProgress(name, "download", 1, 2_000_000))
        return ModelSource(name, "gguf", path)

    monkeypatch.setattr(loading, "pull", pull)

    result = CliRunner().invoke(app, ["models", "pull", "a-model"])

    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{path}\n", "downloading a-model (2 MB)\n")
