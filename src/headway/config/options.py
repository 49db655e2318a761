"""How every option of Headway is declared: one definition feeds checks, help texts and command-line flags.

An option is a dataclass field made by :func:`option`. Its annotation is the kind of value it takes, its metadata
carries the help text, the unit and the bounds; :class:`Checked` validates all fields when an instance is made, so a bad
value never travels further than the line that wrote it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headway.config.kinds import WrongKind, as_kind, kinds_of

HIDDEN = "(hidden)"
"""Stands for a secret in messages."""


class ConfigError(ValueError):
    """A configuration value is not usable.

    Attributes:
        field: name of the offending option.
        value: what was given.
        limit: the rule it broke, in words.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field}={value!r} is not usable: {limit}")
        self.field = field
        self.value = value
        self.limit = limit


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[Any] | None = None,
    flag: bool = True,
    secret: bool = False,
) -> Any:
    """Declare one option.

    Args:
        default: the default value; options without one must be given.
        help: one sentence for ``--help`` and the documentation.
        unit: what the number counts ("tokens", "blocks", "requests", "seconds", "bytes").
        minimum: smallest value allowed, inclusive. ``None`` values are never compared.
        maximum: largest value allowed, inclusive.
        choices: the closed set of allowed values.
        flag: whether the option becomes a command-line flag.
        secret: whether its value must never be shown; it is left out of the dataclass's ``repr``.
    """
    metadata = {
        "help": help,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices) if choices is not None else None,
        "flag": flag,
    }
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata, repr=not secret)
    if default.__hash__ is None:  # dataclasses take such a default only from a factory; ours are read-only
        return dataclasses.field(default_factory=lambda: default, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


class Checked:
    """Base of all option dataclasses: checks kinds and bounds, then calls :meth:`check` for rules between fields.

    Values are brought into one form (``kinds.as_kind``): a sequence becomes a tuple, NumPy's numbers become Python's.
    """

    def __post_init__(self) -> None:
        kinds = kinds_of(type(self))
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, spec.name)
            if given is spec.default:
                continue
            try:
                value = as_kind(kinds[spec.name], given)
            except WrongKind as wrong:
                raise ConfigError(spec.name, shown(spec, given), str(wrong)) from None
            if value is not given:
                object.__setattr__(self, spec.name, value)  # a frozen dataclass, whose one form this is
            check_bounds(spec, value)
        self.check()

    def check(self) -> None:
        """Rules between fields; raise :class:`ConfigError` naming the field to change."""


def check_bounds(spec: dataclasses.Field[Any], value: Any) -> None:
    """Raise :class:`ConfigError` if ``value``, which is of the right kind, breaks the bounds declared for ``spec``."""
    if value is None:
        return
    unit = f" {spec.metadata['unit']}" if spec.metadata.get("unit") else ""
    low, high = spec.metadata.get("minimum"), spec.metadata.get("maximum")
    choices = spec.metadata.get("choices")
    if choices is not None and value not in choices:
        raise ConfigError(spec.name, value, f"must be one of {', '.join(map(str, choices))}")
    if low is not None and value < low:
        raise ConfigError(spec.name, value, f"must be at least {low}{unit}")
    if high is not None and value > high:
        raise ConfigError(spec.name, value, f"must be at most {high}{unit}")


def shown(spec: dataclasses.Field[Any], value: Any) -> Any:
    """What a message may show of a value."""
    return value if spec.repr else HIDDEN
