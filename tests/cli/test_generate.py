"""``headway generate`` on a tiny model: prompts from everywhere, results in order, JSON lines out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headway.cli.main import app
from headway.engine.trace import TraceReader

LIMITS = ["--num-blocks", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--temperature", "0"]


def generate(model: Path, *arguments: str | Path, stdin: str = "") -> Result:
    command = ["generate", "--model", str(model), *LIMITS, *map(str, arguments)]
    return CliRunner().invoke(app, command, input=stdin)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_are_in_the_order_of_the_prompts(tiny_model: Path, tmp_path: Path) -> None:
    prompts = [f"{'x' * length} end" for length in (40, 1, 20, 3, 10, 2)]
    target = tmp_path / "results.jsonl"

    result = generate(tiny_model, *prompts, "--max-tokens", "5", "--ignore-eos", "--output", target)

    assert (result.exit_code, result.stdout) == (0, "")
    found = records(target.read_text())
    assert [one["request_id"] for one in found] == list("012345")
    assert [one["prompt"] for one in found] == prompts
    assert all((len(one["token_ids"]), one["finish_reason"]) == (5, "length") for one in found)
    assert all(one["metrics"]["num_output_tokens"] == 5 and one["metrics"]["ttft_s"] > 0 for one in found)


def test_standard_input_and_arguments_give_the_same(tiny_model: Path) -> None:
    by_argument = generate(tiny_model, "one fox", "two dogs", "--output", "-")
    by_stdin = generate(tiny_model, "--output", "-", stdin="one fox\n\ntwo dogs\n")

    texts = [one["text"] for one in records(by_stdin.stdout)]
    assert texts == [one["text"] for one in records(by_argument.stdout)]
    assert len(texts) == 2


def test_texts_are_printed_for_people(tiny_model: Path) -> None:
    alone = generate(tiny_model, "one fox")
    several = generate(tiny_model, "one fox", "two dogs")

    assert alone.stdout.rstrip("\n") and "---" not in alone.stdout
    assert alone.stdout.rstrip("\n") in several.stdout
    assert [line for line in several.stdout.splitlines() if line.startswith("---")] == [
        "--- 0 (length)",
        "--- 1 (length)",
    ]


def test_json_lines_have_their_own_sampling(tiny_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    lines: list[dict[str, Any]] = [
        {"prompt": "one fox", "max_tokens": 3, "ignore_eos": True},
        {"prompt_token_ids": [70, 71, 72], "request_id": "ids", "ignore_eos": True, "logprobs": 2},
        {"messages": [{"role": "user", "content": "a dog"}], "request_id": "chat", "max_tokens": 1},
    ]
    source.write_text("\n".join(map(json.dumps, lines)))

    found = records(generate(tiny_model, "--file", source, "--max-tokens", "7", "--output", "-").stdout)

    assert [one["request_id"] for one in found] == ["0", "ids", "chat"]
    assert [len(one["token_ids"]) for one in found] == [3, 7, 1]
    assert "prompt" not in found[1]
    assert [len(one["top"]) for one in found[1]["logprobs"]] == [2] * 7
    assert found[2]["prompt"].startswith("<|im_start|>user\na dog<|im_end|>")


def test_priority_decides_who_goes_first(tiny_model: Path) -> None:
    lines = [json.dumps({"prompt": "a dog", "priority": priority, "ignore_eos": True}) for priority in (2, 1, 0)]
    limits = ["--scheduling-policy", "priority", "--max-num-seqs", "1", "--output", "-"]

    found = records(generate(tiny_model, *limits, stdin="\n".join(lines)).stdout)

    queue = [one["metrics"]["queue_s"] for one in found]
    assert queue == sorted(queue, reverse=True)
    assert [one["request_id"] for one in found] == ["0", "1", "2"]


def test_chat_puts_prompts_into_the_template(tiny_model: Path) -> None:
    found = records(generate(tiny_model, "a dog", "--chat", "--output", "-").stdout)

    assert found[0]["prompt"] == "<|im_start|>user\na dog<|im_end|>\n<|im_start|>assistant\n"


def test_a_prompt_that_can_never_be_served_fails_alone(tiny_model: Path) -> None:
    result = generate(tiny_model, "one fox", "x" * 2000, "two dogs", "--output", "-")

    assert result.exit_code == 2
    assert [one["finish_reason"] for one in records(result.stdout)] == ["length", "refused", "length"]
    assert records(result.stdout)[1]["error"]["field"] == "prompt"
    assert result.stderr.startswith("headway: prompt 2: the prompt has ")


def test_same_seed_same_texts(tiny_model: Path) -> None:
    def texts(seed: int) -> list[str]:
        arguments = ["one", "one", "--temperature", "1", "--seed", str(seed), "--output", "-"]
        return [one["text"] for one in records(generate(tiny_model, *arguments).stdout)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_a_trace_can_be_drawn(tiny_model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"

    assert generate(tiny_model, "one fox", "two dogs", "--trace", trace).exit_code == 0

    assert TraceReader(trace).header.cache.num_blocks == 64
    assert CliRunner().invoke(app, ["draw", str(trace)]).exit_code == 0
    assert trace.with_suffix(".png").stat().st_size > 1000


def test_limits_that_do_not_fit_together_are_named(tiny_model: Path) -> None:
    result = generate(tiny_model, "a", "--max-num-seqs", "64")

    assert result.exit_code == 2
    assert "max_num_batched_tokens=32 is not usable: must be at least max_num_seqs (64)" in result.stderr


@pytest.mark.parametrize("stdin", ["", "\n \n"])
def test_no_prompts_at_all(tiny_model: Path, stdin: str) -> None:
    result = generate(tiny_model, stdin=stdin)

    assert (result.exit_code, result.stderr) == (2, "headway: standard input: has no prompts\n")


def test_the_installed_command(tiny_model: Path) -> None:
    command = [str(Path(sys.executable).with_name("headway")), "generate", "--model", str(tiny_model), *LIMITS]

    answer = subprocess.run(
        [*command, "--max-tokens", "4", "--ignore-eos", "--output", "-"],
        input="one fox\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(records(answer.stdout)[0]["token_ids"]) == 4
