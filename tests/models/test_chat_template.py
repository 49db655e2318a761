"""Chat templates that users bring: found, checked with every role, and told what is wrong with them by line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gguf import GGUFWriter

from headway.config import ConfigError
from headway.models.loading import ModelSource, load_tokenizer
from headway.models.loading.chat_template import (
    ChatTemplate,
    TemplateBroken,
    built_in_templates,
    check_asked_template,
    describe_template,
    find_template,
)
from headway.models.loading.tokenizer import byte_alphabet
from headway.models.tiny import make_tiny
from tests.support.gguf_files import write_gguf

LINES = "{% for message in messages %}\n{{ message.role }}: {{ message.content }}\n{% endfor %}\n"
TOOLS = LINES + "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}]


def describe(text: str) -> str:
    return describe_template(ChatTemplate("it", text))


class TestFinding:
    def test_a_text_is_itself(self) -> None:
        assert find_template(LINES, None) == ChatTemplate("as given", LINES)

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.jinja"
        path.write_text(LINES)

        assert find_template(str(path), {}) == ChatTemplate(f"file {path}", LINES)

    def test_a_name_of_the_model_goes_before_a_built_in_one(self) -> None:
        found = find_template("chatml", {"chatml": "x"})

        assert found == ChatTemplate("the model's 'chatml'", "x")

    def test_a_built_in_name_goes_before_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("plain").write_text(LINES)

        assert find_template("plain", {}) == ChatTemplate("the built-in 'plain'", built_in_templates()["plain"])
        assert find_template("./plain", {}) == ChatTemplate("file ./plain", LINES)

    def test_what_may_be_a_name_of_the_model_is_left_open_until_that_is_there(self) -> None:
        assert find_template("rag", None) is None
        with pytest.raises(ConfigError, match="there is no such file, and the templates are tool_use, chatml, llama3"):
            find_template("rag", {"tool_use": "x"})

    @pytest.mark.parametrize("asked", ["no/such/file", "missing.jinja", "./rag"])
    def test_what_can_only_be_a_file_must_be_there(self, asked: str) -> None:
        with pytest.raises(ConfigError, match="there is no such file"):
            find_template(asked, None)

    def test_a_misspelt_name(self) -> None:
        with pytest.raises(ConfigError, match=r"did you mean 'llama3'\?"):
            find_template("llama-3", {})

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.jinja").write_bytes(b"\xff\xfe\x00{{")

        with pytest.raises(ConfigError, match="cannot be read"):
            find_template(str(tmp_path / "x.jinja"), None)

    def test_a_long_text_without_jinja_is_shown_in_short(self) -> None:
        with pytest.raises(ConfigError, match=r"chat_template='x{117}\.\.\.' is not usable"):
            find_template("x" * 9000, {})


class TestChecking:
    @pytest.mark.parametrize("name", built_in_templates())
    def test_the_built_in_ones_know_every_role(self, name: str) -> None:
        note = describe(built_in_templates()[name])

        assert note.startswith("it, with roles system, user, assistant")
        assert ("tool" in note.split("(")[0]) == (name in ("chatml", "llama3"))

    def test_it_says_what_is_missing(self) -> None:
        no_system = LINES.replace(
            "{{ message.role", "{% if message.role == 'system' %}{{ 1/0 }}{% endif %}{{ message.role"
        )
        refuses = no_system.replace("{{ 1/0 }}", "{{ raise_exception('no system role') }}")
        swallows = "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}"

        assert describe(LINES) == "it, with roles system, user, assistant (no tools: it knows none)"
        assert describe(refuses).startswith(
            "it, with roles user, assistant (no system messages: no system role; no too"
        )
        assert "no system messages: the prompt that it writes lacks 'A-system-message.'" in describe(swallows)
        assert describe(TOOLS) == "it, with roles system, user, assistant, tool"
        assert "(no tools: " in describe(LINES + "{# tools #}")
        with pytest.raises(TemplateBroken, match="line 2: division by zero"):
            describe(no_system)

    def test_one_that_needs_a_system_message(self) -> None:
        strict = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + LINES

        assert describe(strict).startswith("it, with roles system, user, assistant")

    @pytest.mark.parametrize(
        ("text", "line", "reason"),
        [
            ("{% for message in messages %}\n{{ message.content }\n{% endfor %}", 2, "unexpected '}'"),
            ("{% for message in messages %}\n{{ message.content }}\n", 2, "end of template"),
            (LINES + "\n{{ nothing.at_all }}", 5, "'nothing' is undefined"),
            (LINES + "\n\n{{ messages[0].content.nope() }}", 6, "has no attribute 'nope'"),
            (LINES + "{{ messages | no_such_filter }}", 4, "No filter named 'no_such_filter'"),
            (LINES + "{% include 'x' %}", 4, "no loader"),
            ("{{ messages.__class__.mro() }}" + LINES, 1, "unsafe"),
            ("{{ 'Hello.' }}", None, "lacks the user's message"),
            ("{{ messages[0].content }}", None, "lacks the user's message"),
            ("{{ messages[-1].content }}", None, "refuses an assistant's message .*lacks 'An-answer.'"),
            ("{{ raise_exception('never') }}", None, r"refuses a user's message \(never\)"),
            (TOOLS + "\n{% if tools %}{{ tools[0].x.y }}{% endif %}", 5, "undefined|no attribute 'x'"),
        ],
    )
    def test_what_is_broken_is_told_by_its_line(self, text: str, line: int | None, reason: str) -> None:
        with pytest.raises(TemplateBroken, match=reason) as broken:
            describe(text)
        assert broken.value.line == line
        assert "\n" not in str(broken.value)
        assert str(broken.value).startswith(f"line {line}: ") == (line is not None)

    def test_special_tokens_are_there(self) -> None:
        assert describe("{{ bos_token + '' }}" + LINES)

    def test_what_is_known_before_the_model_is_checked_before_it(self, tmp_path: Path) -> None:
        (tmp_path / "x.jinja").write_text("{% if %}")

        check_asked_template("chatml")
        check_asked_template("a_name_of_the_model")
        for asked in (str(tmp_path / "x.jinja"), "{% if %}"):
            with pytest.raises(ConfigError, match=r"chat_template=.* is not usable: line 1: Expected an expression"):
                check_asked_template(asked)


class TestBuiltIn:
    CONVERSATION: ClassVar[list[dict[str, Any]]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "tide"}}},
                {"id": "2", "type": "function", "function": {"name": "look_up", "arguments": {"word": "moon"}}},
            ],
        },
        {"role": "tool", "content": "water", "tool_call_id": "1"},
        {"role": "tool", "content": "rock", "tool_call_id": "2"},
        {"role": "assistant", "content": "The moon."},
        {"role": "user", "content": "Sure?"},
    ]

    @pytest.fixture
    def render(self, tmp_path: Path) -> Callable[..., str]:
        folder = make_tiny(tmp_path)

        def render(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
            tokenizer = load_tokenizer(ModelSource("tiny", "folder", folder), chat_template=name)
            return tokenizer.apply_chat_template(messages, **options)

        return render

    def test_chatml(self, render: Callable[..., str]) -> None:
        assert render("chatml", QUESTION) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
        assert render("chatml", self.CONVERSATION, add_generation_prompt=False) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n"
            '<|im_start|>assistant\n<tool_call>\n{"name": "look_up", "arguments": {"word": "tide"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "look_up", "arguments": {"word": "moon"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\nwater\n</tool_response>\n<tool_response>\nrock\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\nThe moon.<|im_end|>\n"
            "<|im_start|>user\nSure?<|im_end|>\n"
        )
        shown = render("chatml", QUESTION, tools=[{"type": "function", "function": {"name": "look_up"}}])
        assert shown.startswith("<|im_start|>system\nYou may call these functions:\n<tools>\n")
        assert '{"type": "function", "function": {"name": "look_up"}}\n</tools>' in shown

    def test_llama3(self, render: Callable[..., str]) -> None:
        text = render("llama3", self.CONVERSATION)

        assert text.startswith(
            "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            '{"name": "look_up", "parameters": {"word": "tide"}}; {"name": "look_up", "parameters": {"word": "moon"}}'
            "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\nwater<|eot_id|>"
        )
        assert text.endswith("Sure?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")

    def test_mistral_and_plain(self, render: Callable[..., str]) -> None:
        simple = [message for message in self.CONVERSATION if message["role"] != "tool" and message["content"]]

        assert render("mistral", simple) == (
            "<|endoftext|>[INST] Be brief.\n\nWhy? [/INST] The moon.<|im_end|>[INST] Sure? [/INST]"
        )
        assert render("plain", simple) == "system: Be brief.\nuser: Why?\nassistant: The moon.\nuser: Sure?\nassistant:"


class TestOfTheModel:
    """Templates by name, from wherever model files keep them."""

    NAMED: ClassVar[dict[str, str]] = {
        "default": "D {{ messages[-1].content }}",
        "tool_use": "T {{ messages[-1].content }}{{ tools }}",
    }

    def in_config(self, folder: Path) -> ModelSource:
        path = make_tiny(folder) / "tokenizer_config.json"
        templates = [{"name": name, "template": text} for name, text in self.NAMED.items()]
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": templates}))
        return ModelSource("tiny", "folder", folder)

    def in_files(self, folder: Path) -> ModelSource:
        path = make_tiny(folder) / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": None}))
        (folder / "chat_template.jinja").write_text(self.NAMED["default"])
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(self.NAMED["tool_use"])
        return ModelSource("tiny", "folder", folder)

    def in_gguf(self, folder: Path) -> ModelSource:
        def extra(writer: GGUFWriter) -> None:
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list([*sorted(byte_alphabet().values()), "ab"])
            writer.add_token_merges(["a b"])
            writer.add_chat_template([{"name": name, "template": text} for name, text in self.NAMED.items()])

        return ModelSource("tiny", "gguf", write_gguf(folder / "m.gguf", {}, extra=extra))

    @pytest.mark.parametrize("place", ["in_config", "in_files", "in_gguf"])
    def test_a_name_chooses(self, place: str, tmp_path: Path) -> None:
        source = getattr(self, place)(tmp_path)
        ask = [{"role": "user", "content": "Why?"}]

        own = load_tokenizer(source)
        assert own.apply_chat_template(ask) == "D Why?"
        assert own.apply_chat_template(ask, tools=[{"name": "x"}]).startswith("T Why?[")
        assert "the model's 'default'" in own.template_note
        assert "the model's 'tool_use'" in own.template_note
        with pytest.raises(ConfigError, match=r"templates are default, tool_use, chatml"):
            load_tokenizer(source, chat_template="rag")

    def test_the_chosen_one_is_used_with_tools_and_without(self, tmp_path: Path) -> None:
        folder = self.in_config(tmp_path).path
        named = [{"name": "default", "template": TOOLS}, {"name": "rag", "template": "R" + LINES}]
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))

        chosen = load_tokenizer(ModelSource("tiny", "folder", folder), chat_template="rag")

        assert chosen.apply_chat_template(QUESTION) == "Ruser: Why?\n"
        assert chosen.apply_chat_template(QUESTION, tools=[{"name": "x"}]) == "Ruser: Why?\n"
        assert chosen.chat_template == "R" + LINES
        assert chosen.template_note == "the model's 'rag', with roles system, user, assistant (no tools: it knows none)"

    def test_a_broken_one_of_the_model_is_told_and_may_be_replaced(self, tmp_path: Path) -> None:
        path = make_tiny(tmp_path) / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": LINES + "{% if %}"}))
        source = ModelSource("tiny", "folder", tmp_path)

        note = load_tokenizer(source).template_note

        assert re.match(r"warning: the model's is broken \(line 4: Expected an expression.*\); the option", note)
        assert load_tokenizer(source, chat_template="plain").apply_chat_template(QUESTION) == "user: Why?\nassistant:"

    def test_none_is_told(self, tmp_path: Path) -> None:
        path = make_tiny(tmp_path) / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": None}))

        assert load_tokenizer(ModelSource("tiny", "folder", tmp_path)).template_note.startswith("none, so chats are")

    def test_ends_of_turns_are_those_that_the_chosen_template_writes(self, tmp_path: Path) -> None:
        path = make_tiny(tmp_path) / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": LINES, "eos_token": None}))
        (tmp_path / "generation_config.json").unlink(missing_ok=True)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        source = ModelSource("tiny", "folder", tmp_path)

        assert load_tokenizer(source).eos_token_ids == ()
        assert load_tokenizer(source, chat_template="chatml").eos_token_ids == (2,)
