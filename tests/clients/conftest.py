"""A Headway server for clients that live in an environment of their own; Headway itself cannot be imported here."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

# Nothing may be asked of anybody but the server: no prices of models, no traces sent, no proxy, no other base URL.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "NO_PROXY": "127.0.0.1"}
for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"):
    os.environ.pop(name, None)

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Its address. When all is done, nothing may be left of any call, and it must end in good order."""
    python = os.environ.get("HEADWAY_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    command = [python, "-m", "tests.clients.scripted_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip().removeprefix("listening on ")
            assert url.startswith("http"), "the server did not start"
            yield url
            with urllib.request.urlopen(f"{url}/debug/requests", timeout=PATIENCE_S) as answer:
                assert json.load(answer)["requests"] == []
        finally:
            process.terminate()
            exit_code = process.wait(PATIENCE_S)
    assert exit_code == 0


@pytest.fixture(scope="session")
def base_url(server: str) -> str:
    """What clients are configured with."""
    return f"{server}/v1"
