"""``headway serve`` as a process, with a tiny model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest
from typer.testing import CliRunner

from headway.cli.main import app
from headway.config import EngineOptions, ServerOptions

PATIENCE_S = 60.0


def test_the_help_names_every_option() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"]).output

    for options in (EngineOptions, ServerOptions):
        for name, spec in options.__dataclass_fields__.items():
            flag = "--" + name.replace("_", "-")
            assert name == "model" or flag in text or f"--no-{flag[2:]}" in text, name
            assert spec.metadata["help"].split()[0] in text
    assert "HEADWAY_" in text


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "70000"], {}, "port=70000 is not usable: must be at most 65535"),
        (["--cache-isolation"], {}, "has no effect without api_key"),
        ([], {"HEADWAY_MAX_N": "x"}, "max_n='x' is not usable: must be an integer"),
        (["--config", "missing.toml"], {}, "cannot be read"),
        (["no/such/model"], {}, "no/such/model"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], env={**environment, "HF_HUB_OFFLINE": "1"})

    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_served_model_answers_and_ends_in_good_order(tiny_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "headway.toml"
    config.write_text('num_blocks = 64\nserved_model_name = ["tiny", "other"]\napi_key = "from-the-file"\n')
    environment = {**os.environ, "HEADWAY_PORT": "0", "HEADWAY_MAX_NUM_QUEUED_REQS": "9"}
    command = [
        sys.executable,
        "-m",
        "headway.cli.main",
        "serve",
        str(tiny_model),
        "--config",
        str(config),
        "--max-n",
        "2",
    ]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = start_of(process)
            port = re.search(r"listening on http://127.0.0.1:(\d+)", said)
            assert port is not None, said
            base = f"http://127.0.0.1:{port[1]}"
            with openai.OpenAI(base_url=f"{base}/v1", api_key="from-the-file", max_retries=0) as client:
                assert [model.id for model in client.models.list().data] == ["tiny", "other"]
                check_answers(client)
                with pytest.raises(openai.BadRequestError, match="at most 2"):
                    client.completions.create(model="tiny", prompt="a", n=3)
            assert httpx.get(f"{base}/health").json()["status"] == "ok"
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()

    assert process.returncode == 0, rest
    assert "at most 9 unfinished requests" in said
    assert "64 blocks" in said
    assert "largest prompt" in said
    assert "from-the-file" not in said + rest


def start_of(process: subprocess.Popen[str]) -> str:
    """What it says until it listens, or until it ends."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "listening on" in line:
            break
    return said


def check_answers(client: openai.OpenAI) -> None:
    """Whole answers and streams are the same, and so are seeded ones, alone or beside others."""
    prompt = "The quick brown fox"
    whole = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
    stream = client.completions.create(model="other", prompt=prompt, max_tokens=12, temperature=0, stream=True)
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream)

    seeded = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=5)
    beside = client.completions.create(model="tiny", prompt=[prompt, "Other", "More text"], max_tokens=12, seed=5, n=2)
    assert beside.choices[0].text == seeded.choices[0].text
    assert beside.choices[1].text != seeded.choices[0].text

    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4, logprobs=True, top_logprobs=3
    )
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert all(len(entry.top_logprobs) == 3 for entry in content)

    scored = client.completions.create(model="tiny", prompt=prompt, echo=True, max_tokens=0, logprobs=2)
    assert scored.choices[0].text == prompt
    assert scored.choices[0].logprobs is not None
    assert scored.choices[0].logprobs.token_logprobs is not None
    assert all(value < 0 for value in scored.choices[0].logprobs.token_logprobs[1:])
