"""Command-line flags made from option dataclasses: one definition per option feeds checks, documents and flags.

A command decorated with ``flags_of("sampling", SamplingParams, ...)`` gets one flag per option and receives, as its
argument ``sampling``, a dictionary of those that were given. What was not given stays out of it, so that whoever
builds the dataclass applies its defaults, and nobody else's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import typer

from headway.config import Checked, ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

_NONE = "none"


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: of the option, as in the dataclass.
        annotation: type that the command line gives us; ``None`` stands for "not given".
        info: what typer wants to know.
        convert: from there to the option's value.
    """

    name: str
    annotation: Any
    info: Any
    convert: Callable[[Any], Any]


def flags_of(
    argument: str, options: type[Checked], panel: str, *, exclude: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command the flags of ``options``.

    Args:
        argument: name of the keyword argument that receives what was given; several decorators may share one.
        options: the dataclass.
        panel: heading in ``--help``.
        exclude: options that mean nothing to this command.
    """
    flags = make_flags(options, panel, exclude)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_flags(*args: Any, **kwargs: Any) -> Any:
            values = dict(kwargs.pop(argument, {}))
            for flag in flags:
                given = kwargs.pop(flag.name, None)
                if given is not None and given != []:
                    values[flag.name] = flag.convert(given)
            return command(*args, **kwargs, **{argument: values})

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != argument]
        taken = {parameter.name for parameter in own} & {flag.name for flag in flags}
        if taken:
            raise ValueError(f"{command.__name__} has two flags named {', '.join(sorted(taken))}")
        made = [
            inspect.Parameter(
                flag.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[flag.annotation, flag.info],
            )
            for flag in flags
        ]
        with_flags.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *made]}
        return typing.cast(Command, with_flags)

    return decorate


def make_flags(options: type[Checked], panel: str, exclude: Collection[str] = ()) -> list[Flag]:
    """One flag per option of the dataclass that is meant to have one."""
    hints = typing.get_type_hints(options)
    return [
        _make_flag(spec, hints[spec.name], panel)
        for spec in dataclasses.fields(options)  # type: ignore[arg-type]
        if spec.metadata.get("flag") and spec.name not in exclude
    ]


def _make_flag(spec: dataclasses.Field[Any], hint: Any, panel: str) -> Flag:
    kind, is_optional = _without_none(hint)
    default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
    declaration = "--" + spec.name.replace("_", "-")
    annotation, metavar, convert = _on_command_line(spec, kind, is_optional)
    if kind is bool:
        declaration += "/--no-" + spec.name.replace("_", "-")
    info = typer.Option(
        declaration,
        help=_help(spec),
        metavar=metavar,
        show_default=_default_text(default),
        rich_help_panel=panel,
    )
    return Flag(spec.name, annotation, info, convert)


def _on_command_line(
    spec: dataclasses.Field[Any], kind: Any, is_optional: bool
) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """What the command line gives for an option of this kind, how it is shown, and how to convert it."""
    if kind is bool:
        return bool | None, None, _same
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        return list[element] | None, None, tuple  # type: ignore[valid-type]
    if typing.get_origin(kind) in (Mapping, dict) or kind in (Mapping, dict):
        return list[str] | None, "ID=NUMBER", functools.partial(_pairs, spec.name)
    if spec.metadata.get("choices"):
        choices = "|".join(map(str, spec.metadata["choices"]))
        return str | None, choices, functools.partial(_choice, spec)
    if is_optional and kind in (int, float):
        return str | None, f"{'INTEGER' if kind is int else 'FLOAT'}|{_NONE}", functools.partial(_number, spec, kind)
    return kind | None, None, _same


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0], len(kinds) < len(typing.get_args(hint))


def _help(spec: dataclasses.Field[Any]) -> str:
    unit = spec.metadata.get("unit")
    return f"{spec.metadata['help']} [{unit}]" if unit else str(spec.metadata["help"])


def _default_text(default: Any) -> str | bool:
    if default is dataclasses.MISSING or (isinstance(default, tuple | Mapping | str) and not default):
        return False
    if isinstance(default, bool):
        return "on" if default else "off"
    return _NONE if default is None else str(default)


# --- conversions -----------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _number(spec: dataclasses.Field[Any], kind: type[int] | type[float], text: str) -> int | float | None:
    if text == _NONE:
        return None
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            spec.name, text, f"must be {'an integer' if kind is int else 'a number'} or {_NONE}"
        ) from None


def _choice(spec: dataclasses.Field[Any], text: str) -> Any:
    """The choice that is written like this; what is no choice is left for the dataclass to refuse."""
    return next((choice for choice in spec.metadata["choices"] if str(choice) == text), text)


def _pairs(name: str, texts: list[str]) -> dict[int, float]:
    pairs = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            pairs[int(key)] = float(value)
        except ValueError:
            raise ConfigError(name, text, "must look like ID=NUMBER, a token id and what to add") from None
    return pairs
