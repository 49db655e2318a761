"""How the prompt of a conversation ends: with a new turn, behind the last message, or within it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.build import LLM, build_engine
from headway.config import ConfigError, EngineOptions
from headway.models.loading import ChatTemplateError
from headway.models.loading.chat_template import built_in_templates
from headway.models.tiny import make_tiny
from tests.models.test_roles import make
from tests.server.running import Running, serving

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASK: list[Any] = [{"role": "user", "content": "Why?"}]
BEGUN: list[Any] = [*ASK, {"role": "assistant", "content": "Since the"}]
NEW_TURN = "<user>Why?<end><assistant>Since the<end><assistant>"
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, NEW_TURN),
    ({"add_generation_prompt": True, "continue_final_message": False}, NEW_TURN),
    ({"add_generation_prompt": None, "continue_final_message": None}, NEW_TURN),
    ({"add_generation_prompt": False}, "<user>Why?<end><assistant>Since the<end>"),
    ({"continue_final_message": True}, "<user>Why?<end><assistant>Since the"),
    ({"continue_final_message": True, "add_generation_prompt": False}, "<user>Why?<end><assistant>Since the"),
]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = make_tiny(tmp_path_factory.mktemp("endings"))
    return {"model": str(folder), "chat_template": TEMPLATE, "num_blocks": 60, "max_num_seqs": 2}


@pytest.fixture(scope="module")
def server(options: dict[str, Any]) -> Iterator[Running]:
    with serving(engine=build_engine(EngineOptions(**options))) as running:
        yield running


@pytest.mark.parametrize(("fields", "prompt"), CASES, ids=str)
def test_a_prompt_ends_as_asked(server: Running, fields: dict[str, Any], prompt: str) -> None:
    tokens = server.post("/tokenize", {"messages": BEGUN, **fields}).json()["tokens"]
    plain = server.post("/tokenize", {"prompt": prompt, "add_special_tokens": False}).json()["tokens"]
    assert tokens == plain

    greedy = {"temperature": 0, "max_tokens": 6}
    chat = server.post("/v1/chat/completions", {"messages": BEGUN, **fields, **greedy}).json()
    text = server.complete(plain, **greedy).json()
    assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == len(plain)


@pytest.mark.parametrize(("fields", "prompt"), CASES, ids=str)
def test_a_prompt_ends_as_asked_offline(options: dict[str, Any], fields: dict[str, Any], prompt: str) -> None:
    asked = {name: value for name, value in fields.items() if value is not None}
    with LLM(**options) as llm:
        assert llm.chat(BEGUN, **asked)[0].prompt == prompt
        with pytest.raises(ConfigError, match="add_generation_prompt"):
            llm.chat(BEGUN, add_generation_prompt=True, continue_final_message=True)


CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("last", "more"),
    [
        ({"role": "assistant", "content": "a"}, {"add_generation_prompt": True}),
        ({"role": "assistant", "content": ""}, {}),
        ({"role": "assistant", "content": " "}, {}),
        ({"role": "assistant", "content": "a", "tool_calls": [CALL]}, {}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_what_cannot_be_continued_is_refused(
    server: Running, path: str, last: dict[str, Any], more: dict[str, Any]
) -> None:
    answer = server.post(path, {"messages": [*ASK, last], "continue_final_message": True, **more})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize("name", sorted(built_in_templates()))
@pytest.mark.parametrize("text", ["It was", "It was ", "It\n\n", "<b>", "assistant", "im_end", "user: "])
def test_a_prompt_ends_with_the_text_to_continue(name: str, text: str) -> None:
    tokenizer = make(built_in_templates()[name])
    messages = [*ASK, {"role": "assistant", "content": text}]

    prompt = tokenizer.apply_chat_template(messages, continue_final_message=True)

    assert prompt.endswith((text, text.rstrip()))
    assert tokenizer.apply_chat_template([*messages, *ASK]).startswith(prompt), "nothing but the end is missing"
    assert len(prompt) > len(tokenizer.apply_chat_template(ASK, False)) + len(text.rstrip())


def test_a_template_that_cannot_continue_says_so_in_short() -> None:
    tokenizer = make("{% for m in messages %}{{ m.role }}{{ m.content[:3] }}{% endfor %}")

    with pytest.raises(ChatTemplateError, match="continue_final_message") as caught:
        tokenizer.apply_chat_template(BEGUN, continue_final_message=True)

    assert "Rendered" not in str(caught.value)
