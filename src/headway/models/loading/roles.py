"""Who may speak in a conversation, and whether its template lets everyone be heard.

Templates pass over what they do not know, in silence: a role, a system message that is not the first one, tool
results. A prompt that lacks what somebody said is never what was asked for. So a conversation is written once more with
marks in place of its texts, and a mark that is missing is an error. Texts may be changed by the template; marks show
whether they are used. The outcome depends on the shape of a conversation alone, so that of recent shapes is remembered.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.models.loading.errors import ChatTemplateError

if TYPE_CHECKING:
    from jinja2 import nodes

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Those of the API; templates may name more."""

_STAND_FOR = {"developer": "system", "function": "tool"}
"""Newer and older names of a role, for templates that have the one only."""

_LONGEST_REMEMBERED = 64
"""Messages of a conversation whose shape is remembered."""

_QUOTED = re.compile(r"""(["'])([\w-]+)\1""")
_MARK = re.compile(r"Mark(\d+)End")

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]


def roles_named_in(template: str) -> frozenset[str]:
    """The words that a template compares a role with, or looks a role up by; every quoted word of one that is written
    in more than Jinja's own syntax."""
    from jinja2 import Environment, TemplateError, nodes

    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError:
        return frozenset(name for _, name in _QUOTED.findall(template))
    names: set[object] = set()
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        others = [side for side in sides if not _reads_role(side)]
        if len(others) < len(sides):
            names |= {constant for side in others for constant in _constants(side)}
    for table in tree.find_all(nodes.Dict):
        keys = {constant for pair in table.items for constant in _constants(pair.key)}
        names |= keys if keys & {"user", "assistant"} else set()
    return frozenset(name for name in names if isinstance(name, str))


def _reads_role(node: nodes.Node) -> bool:
    """Whether an expression is, or is made of, somebody's role."""
    from jinja2 import nodes

    for each in (node, *node.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))):
        if isinstance(each, nodes.Getattr) and each.attr == "role":
            return True
        if isinstance(each, nodes.Getitem) and isinstance(each.arg, nodes.Const) and each.arg.value == "role":
            return True
        if isinstance(each, nodes.Name) and each.name == "role":
            return True
    return False


def _constants(node: nodes.Node) -> set[object]:
    """The values written out in an expression."""
    from jinja2 import nodes

    found = [node] if isinstance(node, nodes.Const) else list(node.find_all(nodes.Const))
    return {constant.value for constant in found}


class Roles:
    """The roles of one template.

    Args:
        model: whose template it is, for errors.
        template: its text.
    """

    def __init__(self, model: str, template: str) -> None:
        self._model = model
        self._names = roles_named_in(template)
        self._left_out = functools.lru_cache(maxsize=512)(_Shape.left_out)

    def cast(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages, with roles that the template has.

        Raises:
            ChatTemplateError: a role is neither one of the API nor named in the template.
        """
        cast = []
        for place, message in enumerate(messages):
            role = message.get("role")
            if role not in self._names and role not in ROLES:
                known = ", ".join(ROLES)
                raise ChatTemplateError(f"messages[{place}].role is {str(role)[:40]!r}; the roles are {known}")
            if role in _STAND_FOR and role not in self._names:
                role = _STAND_FOR[role]
            cast.append({**message, "role": role})
        return cast

    def check_heard(self, messages: Sequence[Message], render: Render, settings: str) -> None:
        """Check that the prompt has something of every message that has a text.

        Args:
            messages: with the template's roles.
            render: writes a prompt.
            settings: what else the prompt depends on.

        Raises:
            ChatTemplateError: one is left out.
        """
        shape = _Shape(messages, render, settings)
        place = self._left_out(shape) if len(messages) <= _LONGEST_REMEMBERED else shape.left_out()
        if place is not None:
            role = messages[place]["role"]
            raise ChatTemplateError(
                f"the chat template of {self._model!r} leaves out messages[{place}], which has the role {role!r}; it"
                " does not know that role, or not in this place"
            )


class _Shape:
    """What decides on whether a template leaves a message out: everything but the texts."""

    def __init__(self, messages: Sequence[Message], render: Render, settings: str) -> None:
        self._messages = messages
        self._render = render
        self._key = (settings, *(_kind(message) for message in messages))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self._key == other._key

    def left_out(self) -> int | None:
        """Place of the first message that is left out."""
        messages, self._messages = self._messages, ()
        render, self._render = self._render, str
        marked = {place for place, message in enumerate(messages) if _must_be_heard(message)}
        try:
            text = render(
                [
                    {**message, "content": f"Mark{place}End"} if place in marked else message
                    for place, message in enumerate(messages)
                ]
            )
        except ChatTemplateError:  # it looks into texts, and took the real ones
            return None
        heard = {int(number) for number in _MARK.findall(text)}
        return min(marked - heard, default=None)


def _must_be_heard(message: Message) -> bool:
    """Whether a message has nothing but its text: templates show calls in place of what came with them."""
    content = message.get("content")
    return isinstance(content, str) and bool(content.strip()) and not message.get("tool_calls")


def _kind(message: Message) -> tuple[object, ...]:
    return (message.get("role"), _must_be_heard(message), *sorted(name for name, value in message.items() if value))
