"""Chat templates that users bring: which one a word, a file or a text means, and whether it works.

A template is a program. Whether it is a good one shows when a conversation is rendered, so that is what is done at
start, with every role; a fault is told with its line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from headway.config import ConfigError

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names that a model's templates have by convention: the one for every chat, and the one for those with tools."""

_FOLDER = "chat_templates"
_SUFFIX = ".jinja"
_FILE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt", ".tmpl", ".json")

USER, ANSWER, SYSTEM, RESULT = "A-user-asks.", "An-answer.", "A-system-message.", "A-result."
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": {"word": "tide"}}}

Message = dict[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A template.

    Attributes:
        origin: where it comes from, in words.
        text: the Jinja program.
    """

    origin: str
    text: str


class TemplateBroken(ValueError):
    """A template cannot be parsed, or fails on a conversation that it should render.

    Attributes:
        line: where, from 1; ``None`` if it is no matter of one line.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        text = " ".join(reason.split())
        super().__init__(text if line is None else f"line {line}: {text}")
        self.line = line


def built_in_templates() -> dict[str, str]:
    """The templates that come with Headway, by name."""
    folder = resources.files("headway.models") / _FOLDER
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(_SUFFIX): file.read_text("utf-8") for file in files if file.name.endswith(_SUFFIX)}


def find_template(asked: str, own: Mapping[str, str] | None) -> ChatTemplate | None:
    """The template that a user means: Jinja text, a name out of the model's, a built-in name, or a file.

    Args:
        asked: what the user wrote. Write ``./name`` for a file that is called like a template.
        own: the model's templates by name; ``None`` if they are not known yet.

    Returns:
        The template; ``None`` if it may be one of the model's, and those are not known yet.

    Raises:
        ConfigError: nothing goes by this name, or the file cannot be read.
    """
    if "{{" in asked or "{%" in asked:
        return ChatTemplate("as given", asked)
    if own is not None and asked in own:
        return ChatTemplate(f"the model's {asked!r}", own[asked])
    built_in = built_in_templates()
    if asked in built_in:
        return ChatTemplate(f"the built-in {asked!r}", built_in[asked])
    path = Path(asked).expanduser()
    if os.path.isfile(path):  # also false for what can be no path at all
        try:
            return ChatTemplate(f"file {asked}", path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("chat_template", shortened(asked), f"cannot be read ({error})") from error
    if own is None and os.sep not in asked and path.suffix.lower() not in _FILE_SUFFIXES:
        return None
    names = [*(own or ()), *built_in]
    close = difflib.get_close_matches(asked, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"there is no such file, and the templates are {', '.join(names)}"
    )
    raise ConfigError("chat_template", shortened(asked), hint)


def describe_template(template: ChatTemplate, special_tokens: Mapping[str, str] | None = None) -> str:
    """Render a conversation with every role, and say in a sentence what the template can do.

    Args:
        template: to look at.
        special_tokens: "bos_token" and the like, which templates write.

    Raises:
        TemplateBroken: it fails, by more than refusing a role, or leaves out what was said.
    """
    probe = _Probe(template.text, special_tokens or {"bos_token": "<s>", "eos_token": "</s>"})
    question, answer = {"role": "user", "content": USER}, {"role": "assistant", "content": ANSWER}
    system = {"role": "system", "content": SYSTEM}
    alone, with_system = probe.refuses([question]), probe.refuses([system, question], SYSTEM)
    if alone and with_system:
        raise TemplateBroken(f"refuses a user's message ({alone})")
    start = [question] if not alone else [system, question]
    if refusal := probe.refuses([*start, answer, question], ANSWER):
        raise TemplateBroken(f"refuses an assistant's message ({refusal})")
    called: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    result: Message = {"role": "tool", "content": RESULT, "name": "look_up", "tool_call_id": _CALL["id"]}
    with_tools = "it knows none"
    if "tools" in template.text:
        with_tools = probe.refuses([*start, called, result], "look_up", RESULT, tools=[_TOOL])
    roles = (["user", "assistant"] if with_system else ["system", "user", "assistant"]) + ["tool"] * (not with_tools)
    missing = [f"no {what}: {why}" for what, why in (("system messages", with_system), ("tools", with_tools)) if why]
    return f"{template.origin}, with roles {', '.join(roles)}" + (f" ({'; '.join(missing)})" if missing else "")


class _Probe:
    """Renders conversations as transformers does."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self._text = text
        self._special_tokens = special_tokens

    def refuses(self, messages: Sequence[Message], *written: str, tools: list[Message] | None = None) -> str:
        """Why the template will not render these messages; empty if it does, with all of ``written`` in it.

        Raises:
            TemplateBroken: it fails otherwise, or leaves out what the user said.
        """
        from jinja2 import TemplateError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            settings: Any = {**self._special_tokens, "tools": tools, "add_generation_prompt": True}
            rendered = render_jinja_template([list(messages)], chat_template=self._text, **settings)[0][0]
        except TemplateSyntaxError as error:
            raise TemplateBroken(error.message or "cannot be parsed", error.lineno) from error
        except Exception as error:  # templates are programs and fail in every way a program can
            if type(error) is TemplateError:  # by its own word
                return " ".join(str(error).split()) or "it says nothing more"
            raise TemplateBroken(str(error) or type(error).__name__, _line(error)) from error
        if USER not in rendered:
            raise TemplateBroken("the prompt that it writes lacks the user's message")
        missing = [text for text in written if text not in rendered]
        return f"the prompt that it writes lacks {missing[0]!r}" if missing else ""


def _line(error: Exception) -> int | None:
    """Line of the template in which an error came up."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def check_asked_template(asked: str) -> None:
    """Check what can be checked before the model is there.

    Raises:
        ConfigError: there is no such template, or it does not work.
    """
    template = find_template(asked, None)
    if template is not None:
        describe_asked(asked, template)


def describe_asked(asked: str, template: ChatTemplate, special_tokens: Mapping[str, str] | None = None) -> str:
    """:func:`describe_template` of one that a user asked for; :class:`ConfigError` if it does not work."""
    try:
        return describe_template(template, special_tokens)
    except TemplateBroken as error:
        raise ConfigError("chat_template", shortened(asked), str(error)) from error


def shortened(asked: str) -> str:
    """What the user wrote, for a message of one line."""
    return asked if len(asked) <= 120 else asked[:117] + "..."
