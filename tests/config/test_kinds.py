"""Every field of every option dataclass takes what its annotation says, in one form, or is refused by name."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import headway.sim.timed  # noqa: F401, so that its options are walked over as well
from headway.config import Checked, ConfigError, EngineOptions, SamplingParams, ServerOptions, Structured
from headway.config.kinds import as_kind, bare_kind, kinds_of
from headway.config.options import check_bounds

NEEDED: dict[type, dict[str, Any]] = {EngineOptions: {"model": "m"}}

NUMBERS_NO_INT_MAY_BE = [1.0, np.float64(1.0), Fraction(1, 2), True, np.True_, "1", b"1", [1], {1}, {}, object(), 1j]
NOT_FLOATS = [True, np.True_, "1.0", [1.0], {}, object(), 1j, math.nan, math.inf, -math.inf, np.float32("nan"), 10**400]
WRONG: dict[Any, list[Any]] = {
    int: [*NUMBERS_NO_INT_MAY_BE, math.nan, np.array([1])],
    float: [*NOT_FLOATS, np.array([1.0])],
    bool: [0, 1, 1.0, "true", np.int64(1), [], object()],
    str: [1, b"x", ["x"], ("x",), {"x"}, object()],
}


def option_classes() -> Iterator[type[Checked]]:
    found = list(Checked.__subclasses__())
    while found:
        each = found.pop()
        found += each.__subclasses__()
        yield each


def fields() -> Iterator[Any]:
    for owner in sorted(option_classes(), key=lambda each: each.__name__):
        for spec in dataclasses.fields(owner):  # type: ignore[arg-type]
            yield pytest.param(owner, spec.name, kinds_of(owner)[spec.name], id=f"{owner.__name__}.{spec.name}")


def needed(owner: type) -> dict[str, Any]:
    missing = {
        spec.name: 0.0
        for spec in dataclasses.fields(owner)
        if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
    }
    return missing | NEEDED.get(owner, {})


def wrong_values(kind: Any) -> list[Any]:
    bare, optional = bare_kind(kind)
    nothing = [] if optional else [None]
    origin = typing.get_origin(bare)
    if origin is tuple:
        [inner, _] = typing.get_args(bare)
        items = [[value] for value in [*wrong_values(inner), None]]
        whole = [1, "text", b"text", {1}, {"x"}, frozenset(), {}, iter(()), np.zeros((1, 1), np.int64), object()]
        return [*nothing, *items, *whole, [*items[0], *items[-1]]]
    if origin is not None:
        key, value = typing.get_args(bare)
        keys = [{wrong: 1.0} for wrong in wrong_values(key) if isinstance(wrong, typing.Hashable)]
        return [*nothing, *keys, *({1: wrong} for wrong in wrong_values(value)), [(1, 1.0)], "1", {1}, 1]
    return [*nothing, *WRONG.get(bare, [1, "text", {}, [], object()])]


@pytest.mark.parametrize(("owner", "name", "kind"), list(fields()))
def test_every_field_refuses_what_is_not_of_its_kind(owner: type, name: str, kind: Any) -> None:
    for value in wrong_values(kind):
        with pytest.raises(ConfigError) as refusal:
            owner(**{**needed(owner), name: value})

        assert refusal.value.field == name, value
        assert "must be" in refusal.value.limit or "each" in refusal.value.limit


@pytest.mark.parametrize(("owner", "name", "kind"), list(fields()))
def test_every_default_is_of_its_kind_and_within_its_bounds(owner: type, name: str, kind: Any) -> None:
    [spec] = [spec for spec in dataclasses.fields(owner) if spec.name == name]
    value = getattr(owner(**needed(owner)), name)

    assert as_kind(kind, value) == value
    check_bounds(spec, value)


def test_there_is_something_to_walk_over() -> None:
    names = {owner.__name__ for owner in option_classes()}

    assert names >= {"SamplingParams", "SchedulerConfig", "CacheConfig", "EngineOptions", "ServerOptions"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"stop_token_ids": [5]}, (5,)),
        ({"stop_token_ids": np.array([5, 6], np.uint8)}, (5, 6)),
        ({"stop_token_ids": (np.int64(5), np.int32(6))}, (5, 6)),
        ({"stop_token_ids": range(3)}, (0, 1, 2)),
        ({"stop": ["a", "b"]}, ("a", "b")),
        ({"stop": np.array(["a"])}, ("a",)),
        ({"logit_bias": MappingProxyType({np.int64(3): 1})}, {3: 1.0}),
        ({"logit_bias": {3: np.float32(0.5)}}, {3: 0.5}),
        ({"max_tokens": np.int16(7)}, 7),
        ({"max_tokens": None}, None),
        ({"seed": np.uint64(2**64 - 1)}, 2**64 - 1),
        ({"seed": -1}, -1),
        ({"temperature": 1}, 1.0),
        ({"temperature": np.float16(0.5)}, 0.5),
        ({"ignore_eos": np.True_}, True),
        ({"logprobs": np.int64(0)}, 0),
    ],
)
def test_what_is_taken_has_one_form(given: dict[str, Any], kept: Any) -> None:
    [(name, value)] = given.items()

    found = getattr(SamplingParams(**given), name)

    assert found == kept
    assert type(found) is type(kept)
    if isinstance(kept, tuple | dict):
        assert [type(each) for each in found] == [type(each) for each in kept]
    if isinstance(kept, Mapping):
        assert {type(each) for each in found.values()} == {float}
        assert found is not value, "what its owner changes later must not change a request"


def test_a_text_of_a_subclass_is_a_text() -> None:
    assert SamplingParams(stop=[np.str_("a")]).stop == ("a",)


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refusal:
        ServerOptions(api_key="hush")

    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Structured("regex", 5),  # type: ignore[arg-type]
        lambda: Structured(["regex"], "a"),  # type: ignore[arg-type]
        lambda: Structured.regex(None),  # type: ignore[arg-type]
        lambda: Structured.grammar(b"a"),  # type: ignore[arg-type]
        lambda: Structured.json(5),  # type: ignore[arg-type]
        lambda: Structured.json({"const": {1, 2}}),
        lambda: Structured.choice("ab"),
        lambda: Structured.choice(5),  # type: ignore[arg-type]
        lambda: Structured.choice(["a", 5]),  # type: ignore[list-item]
        lambda: Structured.choice([None]),  # type: ignore[list-item]
    ],
)
def test_forms_of_the_wrong_kind_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()

    assert refusal.value.field == "structured"
