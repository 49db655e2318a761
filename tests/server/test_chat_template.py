"""A template that the operator brings: conversations are written by it, and its tools are known, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.build import LLM, build_engine
from headway.config import ConfigError, EngineOptions
from headway.models.tiny import make_tiny
from tests.server.running import serving

ASK: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
SMALL = {"num_blocks": 100, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose own template knows no tools."""
    return make_tiny(tmp_path_factory.mktemp("templates"))


def test_tools_come_with_the_template(folder: Path) -> None:
    call = {"model": "tiny", "messages": ASK, "tools": [NOW], "tool_choice": "required", "max_tokens": 60}
    for chat_template in (None, "chatml", "llama3"):
        engine = build_engine(EngineOptions(model=str(folder), chat_template=chat_template, **SMALL))
        options = {"served_model_name": ("tiny",)}
        with serving(engine=engine, options=options) as server, server.openai() as client:
            if chat_template is None:
                with pytest.raises(openai.BadRequestError, match="knows no tools"):
                    client.chat.completions.create(**call)
                continue
            [choice] = client.chat.completions.create(**call, parallel_tool_calls=False).choices
            assert [made.function.name for made in choice.message.tool_calls] == ["now"]
            tokens = server.post("/tokenize", {"model": "tiny", "messages": ASK}).json()["tokens"]
            text = server.post("/detokenize", {"model": "tiny", "tokens": tokens}).json()["prompt"]
            mark = "<|im_start|>system\nBe brief." if chat_template == "chatml" else "<|eot_id|>"
            assert mark in text


def test_a_template_in_python_and_what_is_said_at_start(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}")

    for chat_template in (str(path), path.read_text()):
        with LLM(str(folder), chat_template=chat_template, **SMALL) as llm:
            [output] = llm.chat(ASK)
            [said] = [limit for limit in llm.engine.limits if limit.startswith("chat template: ")]
        assert output.prompt == "[system] Be brief. [user] Why? "
        assert said.endswith(", with roles system, user, assistant (no tools: it knows none)")
        assert str(path) in said or chat_template != str(path)


def test_a_broken_one_stops_the_start_with_its_line(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text("{% for message in messages %}\n{{ message.content }}\n{% endif %}")

    with pytest.raises(ConfigError, match=r"broken\.jinja' is not usable: line 3: .* unknown tag 'endif'") as error:
        LLM(str(folder), chat_template=str(path), **SMALL)
    assert error.value.field == "chat_template"


def test_a_name_of_the_model(folder: Path, tmp_path: Path) -> None:
    named = make_tiny(tmp_path) / "tokenizer_config.json"
    texts = {"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    texts["loud"] = texts["default"].replace("}}", "}}! ")
    templates = [{"name": name, "template": text} for name, text in texts.items()]
    named.write_text(json.dumps({**json.loads(named.read_text()), "chat_template": templates}))

    with LLM(str(tmp_path), chat_template="loud", **SMALL) as llm:
        assert llm.chat(ASK)[0].prompt == "Be brief.! Why?! "
    with pytest.raises(ConfigError, match="there is no such file, and the templates are default, loud, chatml"):
        LLM(str(tmp_path), chat_template="quiet", **SMALL)
