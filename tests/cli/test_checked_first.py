"""Every mistake in the options is told before anything is fetched, by every command that fetches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.build import LLM
from headway.cli.main import app
from headway.config import ConfigError, EngineOptions, SamplingParams, ServerOptions

COMMANDS = {
    "generate": (("generate", "a"), (EngineOptions, SamplingParams)),
    "serve": (("serve",), (EngineOptions, ServerOptions)),
    "demo": (("demo",), (EngineOptions,)),
}
SERVER_ONLY = ("max_num_queued_reqs", "max_num_queued_tokens")
NO_FLAG = {"generate": SERVER_ONLY, "serve": (), "demo": (*SERVER_ONLY, "trace")}

TOGETHER = {
    "trace": ["--trace", "no-such-folder/x"],
    "scheduling_policy": ["--scheduling-policy", "lifo"],
    "ageing_s": ["--ageing-s", "5"],
    "max_num_batched_tokens": ["--max-num-batched-tokens", "8", "--max-num-seqs", "9"],
    "long_prefill_token_threshold": ["--long-prefill-token-threshold", "9000"],
    "swap_space_gib": ["--preemption-mode", "swap"],
    "max_model_len": ["--max-model-len", "63", "--num-blocks", "1"],
    "kv_cache_memory_gib": ["--kv-cache-memory-gib", "1", "--num-blocks", "9"],
    "weight_dtype": ["--kernels", "torch", "--weight-dtype", "bfloat16"],
    "device": ["--device", "cuda"],
    "chat_template": ["--chat-template", "{% for message in messages %}{{ message.content }}"],
}
"""Options that the dataclasses' bounds allow, and that cannot be used: here, together, or at all."""


def _bad_values(options: type[Any]) -> Iterator[tuple[str, str]]:
    """For every option that has bounds, a value out of them as the command line has it."""
    for spec in dataclasses.fields(options):
        if not spec.metadata.get("flag"):
            continue
        if spec.metadata["choices"] is not None:
            yield spec.name, "nothing-of-the-kind"
        elif spec.metadata["minimum"] is not None:
            yield spec.name, str(type(spec.metadata["minimum"])(spec.metadata["minimum"] - 1))


def _bounds() -> Iterator[tuple[str, str, list[str]]]:
    for command, (_, kinds) in COMMANDS.items():
        for options in kinds:
            for name, value in _bad_values(options):
                if name not in NO_FLAG[command] and not (options is SamplingParams and name == "seed"):
                    yield command, name, [f"--{name.replace('_', '-')}={value}"]


def _together() -> Iterator[tuple[str, str, list[str]]]:
    for command in COMMANDS:
        yield command, "chat_template", ["--chat-template", "no-such-file.jinja"]
        for name, flags in TOGETHER.items():
            if name not in NO_FLAG[command] and not (command == "demo" and name == "kv_cache_memory_gib"):
                yield command, name, flags


@pytest.mark.usefixtures("nothing_to_fetch")
@pytest.mark.parametrize(("command", "name", "flags"), [*_bounds(), *_together()])
def test_a_mistake_costs_no_download(
    command: str, name: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    result = CliRunner().invoke(app, [*COMMANDS[command][0], *flags])

    assert result.exit_code == 2, result.exception
    assert result.stderr.startswith(f"headway: {name}=")
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("nothing_to_fetch")
@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_mistake_the_model_is_fetched(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(app, [*COMMANDS[command][0]])

    assert isinstance(result.exception, AssertionError)
    assert "began to fetch" in str(result.exception)


@pytest.mark.usefixtures("nothing_to_fetch")
@pytest.mark.parametrize(
    "options", [{"scheduling_policy": "lifo"}, {"max_num_seqs": 9, "max_num_batched_tokens": 8}, {"trace": "no/x"}]
)
def test_nor_does_it_in_python(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LLM("smollm2-135m", **options)
