"""Tokenizers of bytes whose chat templates are real ones, in the styles that models have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.models.loading import ChatTemplateError
from tests.engine.builders import ByteTokenizer

_HEAD = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{# <tool_call> #}{% for message in messages %}"
_TAIL = "\n{% endfor %}assistant: "
_SAYS = "{{ message.role }}: {{ message.content }}"

ARGUMENTS_AS_JSON = (
    f"{_HEAD}{_SAYS}{{% for call in message.tool_calls or [] %}}<tool_call>{{{{ call.function | tojson }}}}</tool_call>"
    f"{{% endfor %}}{_TAIL}"
)
ARGUMENTS_ONE_BY_ONE = (
    f"{_HEAD}{_SAYS}{{% for call in message.tool_calls or [] %}}<tool_call>{{{{ call.function.name }}}}"
    "{% for key, value in call.function.arguments.items() %}<{{ key }}>{{ value | tojson }}</{{ key }}>{% endfor %}"
    f"</tool_call>{{% endfor %}}{_TAIL}"
)


class TemplateTokenizer(ByteTokenizer):
    """Renders a template as models' own are rendered.

    Args:
        template: in Jinja.
        pieces: more tokens, from id 258 on.
        special: which of the pieces are special tokens.
    """

    def __init__(self, template: str, pieces: Sequence[str] = (), special: Sequence[str] = ()) -> None:
        super().__init__([piece.encode() for piece in pieces])
        self.chat_template = template
        self.ids = {piece: 258 + place for place, piece in enumerate(pieces)}
        self.special_token_ids = ByteTokenizer.special_token_ids | {self.ids[piece] for piece in special}
        environment = ImmutableSandboxedEnvironment()
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            piece = next((piece for piece in self.ids if text.startswith(piece)), text[0])
            ids += [self.ids[piece]] if piece in self.ids else piece.encode()
            text = text[len(piece) :]
        return ids

    def apply_chat_template(
        self, messages: Any, add_generation_prompt: bool = True, tools: Any = None, variables: Any = None
    ) -> str:
        try:
            return self._template.render(messages=[dict(each) for each in messages], tools=tools, **(variables or {}))
        except Exception as error:
            raise ChatTemplateError(str(error)) from error

    def encode_chat(
        self, messages: Any, add_generation_prompt: bool = True, tools: Any = None, variables: Any = None
    ) -> list[int]:
        return self.encode(self.apply_chat_template(messages, add_generation_prompt, tools, variables))
