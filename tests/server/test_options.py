"""Options come from flags, environment and file, by one definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.config import ConfigError, EngineOptions, ServerOptions
from headway.config.sources import from_environment, from_file, merge


def in_file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "headway.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_flags_go_before_the_environment_which_goes_before_the_file(tmp_path: Path) -> None:
    file = in_file(tmp_path, 'port = 1\nmax_n = 1\nhost = "a"\nmodel = "from file"\nmax_num_seqs = 3\nseed = 4\n')
    environment = {"HEADWAY_PORT": "2", "HEADWAY_MAX_N": "2", "HEADWAY_SEED": "5", "PATH": "/"}

    engine, server = merge((EngineOptions, ServerOptions), ({"model": "from flag"}, {"port": 3}), environment, file)

    assert engine == {"model": "from flag", "max_num_seqs": 3, "seed": 5}
    assert server == {"port": 3, "max_n": 2, "host": "a"}
    assert merge((EngineOptions, ServerOptions), ({}, {}), {}, None) == [{}, {}]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("PORT", "9000", 9000),
        ("DRAIN_TIMEOUT", "2.5", 2.5),
        ("KEEP_ALIVE", "none", None),
        ("KEEP_ALIVE", "3", 3.0),
        ("API_KEY", "one, two,,", ("one", "two")),
        ("API_KEY", "", ()),
        ("CACHE_ISOLATION", "true", True),
        ("CACHE_ISOLATION", "OFF", False),
        ("HOST", "::1", "::1"),
    ],
)
def test_variables_are_read_by_the_kind_of_the_option(name: str, text: str, value: Any) -> None:
    assert from_environment(ServerOptions, {f"HEADWAY_{name}": text}) == {name.lower(): value}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PORT", "many", "port='many' is not usable: must be an integer"),
        ("PORT", "none", "must be an integer"),
        ("KEEP_ALIVE", "x", "must be a number or none"),
        ("ACCESS_LOG", "maybe", "must be one of 1, true"),
    ],
)
def test_variables_that_cannot_be_read_are_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_environment(ServerOptions, {f"HEADWAY_{name}": text})


def test_a_file_is_read_by_the_kind_of_the_option(tmp_path: Path) -> None:
    content = (
        'api_key = ["one", "two"]\nserved_model_name = "m"\nkeep_alive = "none"\ndrain_timeout = 3\naccess_log = true\n'
    )

    [values] = from_file(in_file(tmp_path, content), [ServerOptions])

    assert values == {
        "api_key": ("one", "two"),
        "served_model_name": ("m",),
        "keep_alive": None,
        "drain_timeout": 3.0,
        "access_log": True,
    }
    assert ServerOptions(**values).drain_timeout == 3.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "did you mean port"),
        ("xyzzy = 1", "there is no such option"),
        ('port = "1"', "must be an integer"),
        ("port = true", "must be an integer"),
        ("access_log = 1", "must be true or false"),
        ("host = 1", "must be a string"),
        ("keep_alive = false", "must be a number or 'none'"),
        ("served_model_name = [1]", "must be a string or a list of strings"),
        ("port = ", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_file(in_file(tmp_path, content), [ServerOptions, EngineOptions])


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "nothing.toml", [ServerOptions])


def test_a_key_of_the_wrong_kind_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        from_file(in_file(tmp_path, 'api_key = ["sesame", 5]'), [ServerOptions])

    assert "sesame" not in str(caught.value)


def test_no_option_has_two_homes() -> None:
    names = [set(options.__dataclass_fields__) for options in (EngineOptions, ServerOptions)]

    assert names[0] & names[1] == set()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"port": 65536}, "port"),
        ({"stall_timeout": 0}, "stall_timeout"),
        ({"cache_isolation": True}, "cache_isolation"),
        ({"api_key": ("",)}, "api_key"),
        ({"served_model_name": ("",)}, "served_model_name"),
        ({"max_n": 600}, "max_sequences"),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**values)

    assert caught.value.field == field
