"""Command-line flags made from option dataclasses: one definition per option feeds checks, documents and flags.

A command decorated with ``flags_of("sampling", SamplingParams, ...)`` gets one flag per option and receives, as its
argument ``sampling``, a dictionary of those that were given. What was not given stays out of it, so that whoever
builds the dataclass applies its defaults, and nobody else's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import typer

from headway.config import CacheConfig, Checked, ConfigError, SchedulerConfig
from headway.config.kinds import bare_kind, kinds_of
from headway.config.sources import NONE, parse_number

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        option: name of the option, as in the dataclass.
        parameter: name of the command's parameter, unique.
        annotation: type that the command line gives us; ``None`` stands for "not given".
        info: what typer wants to know.
        convert: from there to the option's value.
    """

    option: str
    parameter: str
    annotation: Any
    info: Any
    convert: Callable[[Any], Any]


def flags_of(
    argument: str, options: type[Checked], panel: str | Callable[[str], str], *, exclude: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command the flags of ``options``.

    Args:
        argument: name of the keyword argument that receives what was given; several decorators may share one.
        options: the dataclass.
        panel: heading in ``--help``, or what gives it for an option's name.
        exclude: options that mean nothing to this command.
    """
    flags = make_flags(options, panel, exclude)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_flags(*args: Any, **kwargs: Any) -> Any:
            values = dict(kwargs.pop(argument, {}))
            for flag in flags:
                given = kwargs.pop(flag.parameter, None)
                if given is not None and given != []:
                    values[flag.option] = flag.convert(given)
            return command(*args, **kwargs, **{argument: values})

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != argument]
        taken = {parameter.name for parameter in own} & {flag.parameter for flag in flags}
        if taken:
            raise ValueError(f"{command.__name__} has two flags named {', '.join(sorted(taken))}")
        made = [
            inspect.Parameter(
                flag.parameter,
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


def engine_panel(name: str) -> str:
    """Heading under which an option of ``EngineOptions`` is shown."""
    if name in {spec.name for spec in dataclasses.fields(SchedulerConfig)}:
        return "Scheduler"
    if (
        name in {spec.name for spec in dataclasses.fields(CacheConfig)}
        or name.startswith("kv_")
        or name.endswith("_gib")
        or name == "preallocate"
    ):
        return "KV memory"
    return "Engine"


def make_flags(options: type[Checked], panel: str | Callable[[str], str], exclude: Collection[str] = ()) -> list[Flag]:
    """One flag per option of the dataclass that is meant to have one."""
    hints = kinds_of(options)
    return [
        flag
        for spec in dataclasses.fields(options)  # type: ignore[arg-type]
        if spec.metadata.get("flag") and spec.name not in exclude
        for flag in _make_flags(spec, hints[spec.name], panel if isinstance(panel, str) else panel(spec.name))
    ]


def _make_flags(spec: dataclasses.Field[Any], hint: Any, panel: str) -> list[Flag]:
    kind, is_optional = bare_kind(hint)
    default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
    if kind is bool:
        return _make_switch(spec, bool(default), panel)
    annotation, convert = _on_command_line(spec, kind, is_optional)
    info = typer.Option(
        _flag(spec.name),
        help=_help(spec.metadata["help"], default),
        metavar=_metavar(spec, kind, is_optional),
        show_default=False,  # the default of the parameter is always "not given"; the option's is in the help text
        rich_help_panel=panel,
    )
    return [Flag(spec.name, spec.name, annotation, info, convert)]


def _make_switch(spec: dataclasses.Field[Any], default: bool, panel: str) -> list[Flag]:
    """``--x`` and ``--no-x``. Only the one that changes something is shown; the other one is for scripts."""
    texts = {True: spec.metadata["help"], False: f"Turn this off: {spec.metadata['help']}"}
    return [
        Flag(
            spec.name,
            spec.name if value else f"no_{spec.name}",
            bool | None,
            typer.Option(
                _flag(spec.name if value else f"no_{spec.name}"),
                help=_help(texts[value], dataclasses.MISSING),
                show_default=False,
                hidden=value is default,
                rich_help_panel=panel,
            ),
            functools.partial(_constant, value),
        )
        for value in (not default, default)
    ]


def _on_command_line(spec: dataclasses.Field[Any], kind: Any, is_optional: bool) -> tuple[Any, Callable[[Any], Any]]:
    """What the command line gives for an option of this kind, and how to convert it."""
    if typing.get_origin(kind) is tuple:
        return list[typing.get_args(kind)[0]] | None, tuple  # type: ignore[misc]
    if typing.get_origin(kind) is Mapping:
        return list[str] | None, functools.partial(_pairs, spec.name)
    if spec.metadata.get("choices"):
        return str | None, functools.partial(_choice, spec)
    if is_optional and kind in (int, float):
        return str | None, functools.partial(parse_number, spec, kind, optional=True)
    return kind | None, _same


def _metavar(spec: dataclasses.Field[Any], kind: Any, is_optional: bool) -> str:
    """How the value is shown: what it counts, or which values there are."""
    if spec.metadata.get("choices"):
        return "|".join(map(str, spec.metadata["choices"]))
    if typing.get_origin(kind) is Mapping:
        return "ID=NUMBER"
    element = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    word = str(spec.metadata.get("unit") or {int: "integer", float: "number"}.get(element, "text")).upper()
    return f"{word}|{NONE}" if is_optional and kind in (int, float) else word


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(text: str, default: Any) -> str:
    """Help text with the default, if there is one to speak of."""
    if default is dataclasses.MISSING or (isinstance(default, tuple | Mapping | str) and not default):
        return text
    return f"{text} [default: {NONE if default is None else default}]"


# --- conversions -----------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _constant(value: bool, given: bool) -> bool:
    return value


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
