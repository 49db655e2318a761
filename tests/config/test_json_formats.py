"""Formats as patterns: what they let through is real, and what is real and usual they let through."""

from __future__ import annotations

import calendar
import re

import pytest

from headway.config.schemas.formats import FORMATS, format_pattern
from headway.config.schemas.patterns import split


def fits(name: str, text: str) -> bool:
    return re.fullmatch(FORMATS[name], text) is not None


def test_the_days_of_every_year_are_those_of_the_calendar() -> None:
    for year in (*range(500), 1600, 1700, 1899, 1900, 1996, 2000, 2023, 2024, 2100, 9996, 9999):
        for month in (0, 1, 2, 4, 12, 13):
            last = calendar.monthrange(year, month)[1] if year and 1 <= month <= 12 else 0
            days = [day for day in range(34) if fits("date", f"{year:04d}-{month:02d}-{day:02d}")]
            assert days == list(range(1, last + 1)), (year, month)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date-time", ["2024-02-29T23:59:59.5Z"], ["2024-01-01T24:00:00Z", "2023-02-29T00:00:00Z"]),
        ("date-time", ["0001-01-01T00:00:00-03:30"], ["0000-01-01T00:00:00Z", "2024-01-01T00:00:00"]),
        ("time", ["00:00:00Z", "23:59:59.123456+14:00"], ["24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00+15:00"]),
        ("duration", ["P1Y2M3D", "PT1H", "P3DT4H5M6S", "P2W"], ["P", "PT", "P1H", "1D", "P1YT"]),
        ("uuid", ["01234567-89ab-cdef-0123-456789ABCDEF"], ["0123456789abcdef0123456789abcdef", "g" * 36]),
        ("uuid4", ["01234567-89ab-4def-8123-456789abcdef"], ["01234567-89ab-1def-8123-456789abcdef"]),
        ("ipv4", ["0.0.0.0", "255.249.10.1"], ["256.0.0.1", "01.2.3.4", "1.2.3"]),
        ("ipv6", ["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], [":", "1:2:3", "1::2::3"]),
        ("email", ["a.b+c@example.org"], ["a@b", ".a@b.org", "a..b@c.org", "a@-b.org", "a@b--c.org"]),
        ("hostname", ["example.org", "a-b.c1"], ["-a.org", "a..b", "xn--a.org", "a_b.org", "1.2.3.4"]),
        ("uri", ["https://a.org:80/b?c=d#e", "urn:isbn:123", "pg://u:p@h/db"], ["a.org", "http://", "http://a b"]),
        ("uri-reference", ["/a/b?c", "a", "", "https://a.org"], ["a b", "%zz"]),
        ("json-pointer", ["", "/a/~0b/~1"], ["a", "/~2"]),
        ("base64", ["", "YQ==", "YWI=", "YWJj"], ["Y", "YQ", "YR==", "YQ==YQ=="]),
    ],
)  # fmt: skip
def test_a_format_lets_through_what_is_right(name: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not fits(name, text)] == []
    assert [text for text in wrong if fits(name, text)] == []


def test_beside_a_pattern_a_time_may_lack_what_the_pattern_lacks() -> None:
    loose = format_pattern("date-time", None, has_pattern=True)
    assert loose is not None
    assert re.fullmatch(loose, "2024-02-29T10:00")
    assert not re.fullmatch(loose, "2023-02-29T10:00")


def test_a_url_of_the_length_that_pydantic_gives_to_web_addresses_is_one() -> None:
    pattern = format_pattern("uri", 2083, has_pattern=False)
    assert pattern is not None
    assert re.fullmatch(pattern, "https://a.org") and not re.fullmatch(pattern, "ftp://a.org")


@pytest.mark.parametrize(
    ("pattern", "format_name", "texts"),
    [
        ("^a/b$", "", {"a/b": True, "a": False}),
        (r"\Aa\/b\Z", "", {"a/b": True, "xa/b": False}),
        (r"^(?=.*[A-Z])(?=.*(?:\d|\)))[\w)]+$", "", {"aB1": True, "AB)": True, "ab1": False, "AB": False}),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "", {"1.5": True, "-.5": True, "7.": True, "-": False, ".": False}),
        (r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$", "email", {"a@b.c": True}),
    ],
)  # fmt: skip
def test_a_pattern_is_said_without_looking_around(pattern: str, format_name: str, texts: dict[str, bool]) -> None:
    parts = split(pattern, format_name)

    assert parts is not None
    assert not any("(?=" in part or "(?!" in part or r"\Z" in part for part in parts)
    assert {text: all(re.search(part, text) is not None for part in parts) for text in texts} == texts


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"^(?!x)a", r"(?<=a)b", r"\bword\b", r"(a)\1", r"(?<n>a)\k<n>"])
def test_a_pattern_that_cannot_be_said_is_told(pattern: str) -> None:
    assert split(pattern) is None


def test_what_only_looks_like_looking_around_is_kept() -> None:
    assert split(r"[(?=]\(?[\]b]") == [r"[(?=]\(?[\]b]"]
