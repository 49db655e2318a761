"""Flags are made of option dataclasses, and what was not given stays out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headway.cli.flags import engine_panel, flags_of
from headway.cli.help import GroupedCommand
from headway.config import EngineOptions, SamplingParams
from headway.config.options import Checked, option


def parse(*arguments: str, options: type[Checked] = SamplingParams) -> dict[str, Any]:
    """What a command with these flags receives; ``exit`` and ``error`` if it does not run."""
    received: dict[str, Any] = {}
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @flags_of("given", options, "Panel")
    def command(name: str = "unnamed", *, given: dict[str, Any]) -> None:
        received.update(given, name=name)

    result = CliRunner().invoke(app, list(arguments))
    if result.exit_code:
        return {"exit": result.exit_code, "error": result.exception}
    return received


def test_only_what_was_given_arrives() -> None:
    assert parse() == {"name": "unnamed"}
    assert parse("--top-k", "5", "--name", "x") == {"name": "x", "top_k": 5}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--temperature", "0.5"], {"temperature": 0.5}),
        (["--max-tokens", "none"], {"max_tokens": None}),
        (["--max-tokens", "7"], {"max_tokens": 7}),
        (["--ignore-eos"], {"ignore_eos": True}),
        (["--no-ignore-eos"], {"ignore_eos": False}),
        (["--no-skip-special-tokens"], {"skip_special_tokens": False}),
        (["--stop", "a", "--stop", "b c"], {"stop": ("a", "b c")}),
        (["--stop-token-ids", "3", "--stop-token-ids", "4"], {"stop_token_ids": (3, 4)}),
        (["--logit-bias", "5=-1.5", "--logit-bias", "6=2"], {"logit_bias": {5: -1.5, 6: 2.0}}),
    ],
)
def test_every_kind_of_option(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse(*arguments) == {"name": "unnamed", **expected}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "many"], "max_tokens='many' is not usable: must be an integer or none"),
        (["--logit-bias", "5"], "logit_bias='5' is not usable: must look like ID=NUMBER"),
    ],
)
def test_what_cannot_be_read_is_named(arguments: list[str], message: str) -> None:
    assert message in str(parse(*arguments)["error"])


def test_every_option_has_one_flag() -> None:
    @flags_of("given", EngineOptions, engine_panel)
    def command(*, given: dict[str, Any]) -> None: ...

    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(command)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output

    for spec in dataclasses.fields(EngineOptions):
        assert spec.name.replace("_", "-") in shown
    assert all(f"\n{panel}:\n" in shown for panel in ("Engine", "KV memory", "Scheduler"))
    assert "[default: 2048]" in " ".join(shown.split())
    assert "TOKENS|none" in shown


def test_choices_come_as_they_are_declared() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options(Checked):
        level: int = option(1, help="How much.", choices=(1, 2))

    assert parse("--level", "2", options=Options)["level"] == 2
    assert parse("--level", "9", options=Options)["level"] == "9"


def test_two_flags_of_one_name_are_a_bug() -> None:
    def command(top_k: int = 0, *, given: dict[str, Any]) -> None: ...

    with pytest.raises(ValueError, match="two flags named top_k"):
        flags_of("given", SamplingParams, "Panel")(command)
