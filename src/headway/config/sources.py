"""Options from the environment and from a TOML file, by the same definitions that make the command-line flags.

A field ``max_n`` is the variable ``HEADWAY_MAX_N`` and the key ``max_n``. In a variable, several values of one option
are separated by commas, and ``none`` stands for no value. Flags go before the environment, which goes before the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.config.kinds import bare_kind, kinds_of
from headway.config.options import Checked, ConfigError, shown

PREFIX = "HEADWAY_"
NONE = "none"
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def merge(
    options: Sequence[type[Checked]],
    flags: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    file: Path | None,
) -> list[dict[str, Any]]:
    """What is set for each of the dataclasses: by flags, else by the environment, else in the file.

    Args:
        options: no two of them have an option of the same name.
        flags: what was given on the command line, for each of them.
        environment: of the process.
        file: a TOML file, if there is one.

    Raises:
        ConfigError: a value cannot be read.
    """
    in_file: list[dict[str, Any]] = from_file(file, options) if file is not None else [{} for _ in options]
    return [
        {**low, **from_environment(each, environment), **high}
        for each, low, high in zip(options, in_file, flags, strict=True)
    ]


def from_environment(options: type[Checked], environment: Mapping[str, str]) -> dict[str, Any]:
    """The options that are set there.

    Raises:
        ConfigError: a value cannot be read.
    """
    return {
        name: _parse(spec, kind, environment[PREFIX + name.upper()])
        for name, (spec, kind) in _kinds(options).items()
        if PREFIX + name.upper() in environment
    }


def from_file(path: Path, options: Sequence[type[Checked]]) -> list[dict[str, Any]]:
    """The options set in a TOML file, for each of the dataclasses.

    Raises:
        ConfigError: the file cannot be read, or has a key that no dataclass knows, or a value of another kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("config", str(path), f"cannot be read ({error})") from error
    kinds = [_kinds(each) for each in options]
    known = [name for each in kinds for name in each]
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise ConfigError("config", key, f"did you mean {close[0]}?" if close else "there is no such option")
    return [{name: _take(*each[name], content[name]) for name in content if name in each} for each in kinds]


def _kinds(options: type[Checked]) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Field and type of every option that users may set."""
    hints = kinds_of(options)
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    return {spec.name: (spec, hints[spec.name]) for spec in fields if spec.metadata.get("flag")}


def parse_number(
    spec: dataclasses.Field[Any], kind: type[int] | type[float], text: str, *, optional: bool
) -> int | float | None:
    """A number out of its text; ``none`` is none where that is allowed.

    Raises:
        ConfigError: it is no number of this kind.
    """
    if optional and text == NONE:
        return None
    try:
        return kind(text)
    except ValueError:
        what = f"{'an integer' if kind is int else 'a number'}{f' or {NONE}' if optional else ''}"
        raise ConfigError(spec.name, text, f"must be {what}") from None


def _parse(spec: dataclasses.Field[Any], kind: Any, text: str) -> Any:
    """A value out of its text."""
    bare, optional = bare_kind(kind)
    if optional and text == NONE:
        return None
    if typing.get_origin(bare) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if bare is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(spec.name, text, f"must be one of {', '.join(_BOOLEANS)}")
        return _BOOLEANS[text.lower()]
    if bare in (int, float):
        return parse_number(spec, bare, text, optional=optional)
    return text


def _take(spec: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    """A value as TOML gives it, if it is of the right kind."""
    bare, optional = bare_kind(kind)
    if optional and value == NONE:
        return None
    if typing.get_origin(bare) is tuple:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(each, str) for each in values):
            return tuple(values)
        raise ConfigError(spec.name, shown(spec, value), "must be a string or a list of strings")
    if bare is float and type(value) is int:
        return float(value)
    if type(value) is not bare:
        names = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
        raise ConfigError(spec.name, value, f"must be {names[bare]}{f' or {NONE!r}' if optional else ''}")
    return value
