"""The tests of client libraries stay apart from Headway, and what they stand on works."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai

from tests.clients.asking import ADA, MODEL, Person
from tests.clients.script import GREETING, HELLO, PERSON_QUESTION
from tests.clients.scripted_server import make_engine
from tests.server.running import serving

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "clients"


def test_all_they_install_is_pinned_and_nothing_of_it_is_torch() -> None:
    text = re.sub(r"^(#.*)?\n", "", (CLIENTS / "requirements.txt").read_text(), flags=re.MULTILINE)
    names = [re.fullmatch(r"([a-z0-9-]+)(\[[a-z]+\])?==[0-9][0-9a-z.]*", line) for line in text.splitlines()]

    assert len(names) > 100 and all(names)
    installed = [name[1] for name in names if name is not None]
    assert len(set(installed)) == len(installed)
    assert not [name for name in installed if name.startswith(("torch", "nvidia", "triton", "cuda", "headway"))]


def test_only_the_server_imports_headway() -> None:
    for path in CLIENTS.glob("*.py"):
        imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        modules = [node.module or "" for node in imported]
        own = [module for module in modules if module.startswith(("headway", "tests."))]
        if path.name != "scripted_server.py":
            assert [module for module in own if not module.startswith("tests.clients.")] == [], path.name


def test_they_are_not_collected_with_the_others() -> None:
    others = [f"--ignore={path}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path != CLIENTS]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests", *others]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    assert collected.startswith("\nno tests collected"), collected


def test_the_scripted_model_keeps_to_forms(tmp_path: Path) -> None:
    with serving(engine=make_engine(tmp_path), options={"served_model_name": (MODEL,)}) as server:

        def ask(client: openai.OpenAI, question: str, **fields: Any) -> Any:
            return client.chat.completions.parse(
                model=MODEL, messages=[{"role": "user", "content": question}], **fields
            ).choices[0]

        with server.openai() as client:
            assert ask(client, HELLO).message.content == GREETING
            assert ask(client, PERSON_QUESTION, response_format=Person).message.parsed == ADA
            tools: Any = [openai.pydantic_function_tool(Person)]
            [call] = ask(client, PERSON_QUESTION, tools=tools, tool_choice="required").message.tool_calls
            assert call.function.parsed_arguments == ADA
        server.rest()
