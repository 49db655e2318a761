"""The kinds of values that options have: checked, and brought into one form, when what holds them is made."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any


class WrongKind(Exception):
    """A value is not of the kind that was declared; the message says what it must be."""


def bare_kind(kind: Any) -> tuple[Any, bool]:
    """A type without ``None``, and whether it allowed that."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind, False
    [bare] = [each for each in typing.get_args(kind) if each is not type(None)]
    return bare, True


_hints = functools.cache(typing.get_type_hints)


def kinds_of(owner: type) -> dict[str, Any]:
    """The annotated types of a class, by field."""
    return _hints(owner)


def as_kind(kind: Any, value: Any) -> Any:
    """``value`` in the one form that values of this kind have.

    Whoever gives a number may give NumPy's, and a whole number where a float is wanted; whoever gives several values
    may give any sequence, and gets a tuple. What only looks alike is refused: truth values are no numbers, floats no
    integers, a text is no sequence of texts, and a set has no order. A float must be finite.

    Args:
        kind: a class, ``X | None``, ``tuple[X, ...]`` or ``Mapping[X, Y]``.
        value: anything.

    Raises:
        WrongKind: it is not of this kind.
    """
    bare, optional = bare_kind(kind)
    if value is None and optional:
        return None
    try:
        return _convert(bare, value)
    except WrongKind as wrong:
        raise WrongKind(f"{wrong} or none" if optional else str(wrong)) from None


def _convert(bare: Any, value: Any) -> Any:
    origin = typing.get_origin(bare)
    if origin is tuple:
        return _as_tuple(typing.get_args(bare)[0], value)
    if origin is not None:
        return _as_mapping(bare, value)
    if type(value) is bare and bare is not float:
        return value
    if bare is bool:
        return _as_bool(value)
    if bare is int:
        return _as_int(value)
    if bare is float:
        return _as_float(value)
    if isinstance(value, bare):
        return str.__str__(value) if bare is str else value
    raise WrongKind(f"must be {_name(bare)}")


def _as_bool(value: Any) -> bool:
    if type(value).__name__ in ("bool", "bool_") and not isinstance(value, Integral):  # NumPy's, without importing it
        return bool(value)
    raise WrongKind("must be true or false")


def _as_int(value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise WrongKind("must be an integer")


def _as_float(value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise WrongKind("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WrongKind(f"must be a finite number, not {'NaN' if math.isnan(number) else 'infinite'}")
    return number


def _as_tuple(kind: Any, value: Any) -> tuple[Any, ...]:
    several = _is_array(value) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)))
    if not several:
        why_not = ", not one text, whose items are its characters" if isinstance(value, str) else ""
        raise WrongKind(f"must be a sequence, each item {_name(kind)}{why_not}")
    try:
        return tuple(as_kind(kind, each) for each in value)
    except WrongKind as wrong:
        raise WrongKind(f"each item {wrong}") from None


def _as_mapping(kind: Any, value: Any) -> dict[Any, Any]:
    key_kind, value_kind = typing.get_args(kind)
    if not isinstance(value, Mapping):
        raise WrongKind(f"must be a mapping from {_name(key_kind)} to {_name(value_kind)}")
    try:
        return {as_kind(key_kind, key): as_kind(value_kind, each) for key, each in value.items()}
    except WrongKind as wrong:
        raise WrongKind(f"each key must be {_name(key_kind)} and each value {_name(value_kind)} ({wrong})") from None


def _is_array(value: Any) -> bool:
    """Whether it is an array of one dimension, of NumPy or the like."""
    return getattr(value, "ndim", None) == 1 and hasattr(value, "__array__")


def _name(kind: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")
