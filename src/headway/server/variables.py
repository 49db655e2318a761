"""Variables that a call sets for the chat template: how much to think and to write, and whatever else it knows."""

from __future__ import annotations

import json
import re
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from headway.server.errors import ApiError, invalid
from headway.server.protocol.chat import ChatBody

MAX_CHARS = 16_384
"""Of ``chat_template_kwargs`` as JSON."""

RESERVED = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)
"""What is decided elsewhere, or belongs to the call that renders a template."""


def template_variables(body: ChatBody) -> dict[str, Any]:
    """The variables, by name; the template is given those that it knows (``Tokenising``).

    ``chat_template_kwargs`` go before the fields that stand for a variable.

    Raises:
        ApiError: a name is reserved, or there is too much.
    """
    given = body.chat_template_kwargs or {}
    for name in given:
        if name in RESERVED:
            raise invalid(f"chat_template_kwargs cannot set {name!r}", "chat_template_kwargs")
    num_chars = len(json.dumps(given)) if given else 0
    if num_chars > MAX_CHARS:
        message = f"chat_template_kwargs has {num_chars} characters; at most {MAX_CHARS} are allowed"
        raise ApiError(400, message, code="limit_exceeded", param="chat_template_kwargs")
    variables: dict[str, Any] = {}
    if body.verbosity is not None:
        variables["verbosity"] = body.verbosity
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    thinks = _thinks(body)
    if thinks is not None:
        variables |= {"enable_thinking": thinks, "thinking": thinks}
    return variables | given


def variables_of(template: str) -> frozenset[str]:
    """The variables that a chat template knows; every word of it, if it is written in more than Jinja's own syntax."""
    try:
        return frozenset(find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)))
    except TemplateError:
        return frozenset(re.findall(r"[A-Za-z_]\w*", template))


def _thinks(body: ChatBody) -> bool | None:
    """Whether the model is to think before it answers; ``None`` if the call does not say."""
    if body.enable_thinking is not None:
        return body.enable_thinking
    if body.thinking is not None:
        return body.thinking.type != "disabled"
    return None if body.reasoning_effort is None else body.reasoning_effort != "none"
