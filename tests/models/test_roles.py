"""Every message of a conversation is in its prompt, or the conversation is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from headway.build import LLM, build_engine
from headway.config import EngineOptions
from headway.models.loading import ChatTemplateError
from headway.models.loading.chat_template import built_in_templates
from headway.models.loading.roles import roles_named_in
from headway.models.loading.tokenizer import FastTokenizer
from headway.models.tiny import make_tiny
from tests.server.running import serving

NAMED = (
    "{% for m in messages %}{% if m['role'] == 'system' %}S:{{ m.content }}\n"
    "{% elif m['role'] == 'user' %}U:{{ m.content | trim }}\n"
    "{% elif m['role'] == 'assistant' %}A:{{ m.content.split('</think>')[-1] }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}\n{% endif %}{% endfor %}A:"
)
"""Passes over all other roles."""
FIRST_SYSTEM_ONLY = (
    "{% if messages[0].role == 'system' %}S:{{ messages[0].content }}\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' or m.role == 'assistant' %}{{ m.role }}:{{ m.content }}\n{% endif %}{% endfor %}"
)
WITH_DEVELOPER = (
    "{% for m in messages %}{% if m.role in ['system', 'developer', 'user', 'assistant', 'ipython'] %}{{ m.role }}:"
    "{{ m.content }}\n{% endif %}{% endfor %}"
)
GENERIC = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def make(template: str) -> FastTokenizer:
    inner = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "</s>": 1})), eos_token="</s>")
    inner.chat_template = template
    return FastTokenizer("m", Path("m"), inner, ())


def say(*pairs: tuple[str, str], **more: Any) -> list[dict[str, Any]]:
    return [{"role": role, "content": content, **more} for role, content in pairs]


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    asked = say(("developer", "Be brief."), ("user", "Why?"))

    assert make(NAMED).apply_chat_template(asked) == "S:Be brief.\nU:Why?\nA:"
    assert make(GENERIC).apply_chat_template(asked) == "<system>Be brief.<user>Why?"
    assert make(WITH_DEVELOPER).apply_chat_template(asked) == "developer:Be brief.\nuser:Why?\n"
    assert asked[0]["role"] == "developer"


def test_a_function_is_a_tool_where_the_template_knows_none() -> None:
    assert make(GENERIC).apply_chat_template(say(("function", "2"))) == "<tool>2"


@pytest.mark.parametrize("template", [NAMED, FIRST_SYSTEM_ONLY, WITH_DEVELOPER, GENERIC])
@pytest.mark.parametrize("role", ["pirate", "", "User", "system ", "assistants", None, 3])
def test_roles_that_nobody_knows_are_refused(template: str, role: Any) -> None:
    with pytest.raises(ChatTemplateError, match=r"messages\[1\]\.role is .*the roles are system, developer, user"):
        make(template).apply_chat_template([*say(("user", "a")), {"role": role, "content": "b"}])


def test_a_role_of_the_template_is_taken() -> None:
    assert make(WITH_DEVELOPER).apply_chat_template(say(("ipython", "2"))) == "ipython:2\n"


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{% if m.role == 'user' %}{{ m['content'] }}{{ 'x' }}{% endif %}", {"user"}),
        ("{% if 'ipython' != m['role'] or m.role|lower in ['a', \"b-c\"] %}{% endif %}", {"ipython", "a", "b-c"}),
        ("{% set role = m.role %}{% if role == 'critic' and m.kind == 'x' %}{% endif %}", {"critic"}),
        (
            "{% set names = {'user': 'U', 'model': 'M'} %}{{ names[m.role] }}{{ {'type': 'function'} }}",
            {"user", "model"},
        ),
        ("{{ '{\"type\": \"function\"}' }}{% if m.role == 'tool' %}{% endif %}", {"tool"}),
        ("{% generation %}{{ m.role == 'user' }}{% endgeneration %}", {"user"}),
    ],
)
def test_roles_are_what_a_template_compares_a_role_with(template: str, names: set[str]) -> None:
    assert roles_named_in(template) == names


def test_other_words_of_a_template_are_no_roles() -> None:
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ '\"function\"' }}{% endfor %}"

    with pytest.raises(ChatTemplateError, match="role is 'content'"):
        make(template).apply_chat_template(say(("content", "x")))
    assert make(template).apply_chat_template(say(("function", "x"))).startswith("<tool>")


LEFT_OUT = [
    (NAMED, [("user", "a"), ("tool", "b")], 1),
    (NAMED, [("user", "a"), ("function", "b")], 1),
    (FIRST_SYSTEM_ONLY, [("user", "a"), ("system", "b"), ("user", "c")], 1),
    (FIRST_SYSTEM_ONLY, [("system", "a"), ("developer", "b"), ("user", "c")], 1),
    (FIRST_SYSTEM_ONLY, [("user", "a"), ("developer", "a"), ("user", "a")], 1),
    ("{% for m in messages %}{% if not loop.last %}{{ m.content }}{% endif %}{% endfor %}", [("user", "a")] * 3, 2),
    ("Hello.", [("user", "Hello.")], 0),
]


@pytest.mark.parametrize(("template", "pairs", "place"), LEFT_OUT)
def test_a_message_that_is_left_out_is_an_error(template: str, pairs: list[tuple[str, str]], place: int) -> None:
    tokenizer = make(template)
    for _ in range(2):  # the outcome is remembered
        with pytest.raises(ChatTemplateError, match=rf"leaves out messages\[{place}\]"):
            tokenizer.apply_chat_template(say(*pairs))


HEARD = [
    (NAMED, [("user", "  a  "), ("assistant", "<think>b</think>c"), ("user", "d")]),
    (NAMED, [("user", "a"), ("assistant", ""), ("tool", ""), ("user", " ")]),
    (FIRST_SYSTEM_ONLY, [("system", "a"), ("user", "b")]),
    ("{% for m in messages %}{{ m.content[:9] ~ m.content[9:] }}{% endfor %}", [("user", "a")]),
]


@pytest.mark.parametrize(("template", "pairs"), HEARD)
def test_texts_that_a_template_changes_are_heard(template: str, pairs: list[tuple[str, str]]) -> None:
    make(template).apply_chat_template(say(*pairs))


def test_what_comes_with_calls_may_be_left_out() -> None:
    template = NAMED.replace("{{ m.content.split('</think>')[-1] }}", "")
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    asked = [*say(("user", "a")), *say(("assistant", "I add."), tool_calls=[call])]

    assert make(template).apply_chat_template(asked) == "U:a\nA:<add>A:"
    with pytest.raises(ChatTemplateError, match=r"leaves out messages\[1\]"):
        make(template).apply_chat_template(say(("user", "a"), ("assistant", "I add.")))


def test_a_template_that_looks_into_texts_decides_by_them() -> None:
    template = "{% for m in messages %}{{ (m.content | int / (m.content | int)) }}{% endfor %}"

    assert make(template).apply_chat_template(say(("user", "7"))) == "1.0"


@pytest.mark.parametrize("name", sorted(built_in_templates()))
def test_the_built_in_templates_let_everyone_be_heard(name: str) -> None:
    tokenizer = make(built_in_templates()[name])
    for first in ("system", "developer"):
        text = tokenizer.apply_chat_template(say((first, "aa"), ("user", "bb"), ("assistant", "cc"), ("user", "dd")))
        assert [part for part in ("aa", "bb", "cc", "dd") if part not in text] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("roles"))


def test_over_http_and_offline(folder: Path) -> None:
    options = {"model": str(folder), "chat_template": NAMED, "num_blocks": 50, "max_num_seqs": 2}
    asked = say(("developer", "Be brief."), ("user", "Why?"))
    with serving(engine=build_engine(EngineOptions(**options))) as server:
        for path, more in (("/v1/chat/completions", {"max_tokens": 2}), ("/tokenize", {})):
            assert server.post(path, {"messages": asked, **more}).status_code == 200
            for wrong, said in ((("pirate", "x"), "messages[1].role"), (("tool", "x"), "leaves out messages[1]")):
                answer = server.post(path, {"messages": say(("user", "a"), wrong), **more})
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert said in error["message"] and error["param"] == "messages"
    with LLM(**{key: value for key, value in options.items() if key != "model"}, model=str(folder)) as llm:
        assert llm.chat(asked)[0].prompt == "S:Be brief.\nU:Why?\nA:"
