"""Formats of strings as regular expressions, so narrow that parsers take whatever fits: no year 0000, no 31 February.

They are written in what Rust's and Python's syntax share. Where a format has several readings, the one that more
parsers take is chosen: years from 0001, offsets that exist, no leap seconds, host names without punycode.
"""

from __future__ import annotations


def _any(*choices: str) -> str:
    return f"(?:{'|'.join(choices)})"


_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
"""Two digits that four divides, but 00."""
_LEAP_YEAR = _any(rf"[0-9]{{2}}{_FOURTH}", rf"{_FOURTH}00")
_DATE = _any(
    rf"{_YEAR}-(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    rf"{_YEAR}-(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    rf"{_YEAR}-02-(?:0[1-9]|1[0-9]|2[0-8])",
    rf"{_LEAP_YEAR}-02-29",
)
_MINUTE = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SECOND = r":[0-5][0-9](?:\.[0-9]{1,6})?"
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])"
_TIME = _MINUTE + _SECOND

_HOURS = r"(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = r"(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
_DURATION = rf"P(?:{_DAYS}(?:T{_HOURS})?|T{_HOURS}|[0-9]{{1,4}}W)"

_HEX = "[0-9a-fA-F]"


def _uuid(version: str) -> str:
    return rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_GROUP = rf"{_HEX}{{1,4}}"
_LAST_32 = _any(rf"{_GROUP}:{_GROUP}", _IPV4)
_IPV6 = _any(
    rf"(?:{_GROUP}:){{6}}{_LAST_32}",
    rf"::(?:{_GROUP}:){{5}}{_LAST_32}",
    *(rf"(?:{_GROUP}(?::{_GROUP}){{0,{before}}})?::(?:{_GROUP}:){{{4 - before}}}{_LAST_32}" for before in range(5)),
    rf"(?:{_GROUP}(?::{_GROUP}){{0,5}})?::{_GROUP}",
    rf"(?:{_GROUP}(?::{_GROUP}){{0,6}})?::",
)
_IPV4_PREFIX = r"/(?:3[0-2]|[12]?[0-9])"
_IPV6_PREFIX = r"/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])"
# Networks whose host part is zero, on the borders of bytes and groups.
_IPV4_NETWORK = _any(
    rf"(?:{_BYTE}\.){{3}}{_BYTE}/32", rf"(?:{_BYTE}\.){{3}}0/24", rf"(?:{_BYTE}\.){{2}}0\.0/16", rf"{_BYTE}\.0\.0\.0/8"
)
_IPV6_NETWORK = _any(
    rf"(?:{_GROUP}:){{7}}{_GROUP}/128", *(rf"{_GROUP}(?::{_GROUP}){{{n - 1}}}::/{16 * n}" for n in range(1, 7))
)

# No two hyphens in a row: such names are punycode, which is checked further.
_LABEL = r"[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}"
_TOP = r"[a-zA-Z](?:-?[a-zA-Z0-9]){0,30}"
_HOSTNAME = rf"(?:{_LABEL}\.){{0,3}}{_TOP}"
_LOCAL_PART = r"[a-zA-Z0-9_+-]{1,30}(?:\.[a-zA-Z0-9_+-]{1,16})?"
_EMAIL = rf"{_LOCAL_PART}@(?:{_LABEL}\.){{1,3}}[a-zA-Z]{{2,20}}"

_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"
_PATH = rf"(?:/{_PCHAR}*)*"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_PORT = r"(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
_HOST = _any(_HOSTNAME, _IPV4, rf"\[{_IPV6}\]") + _PORT
_USER = r"(?:[A-Za-z0-9._~-]{1,32}(?::[A-Za-z0-9._~-]{0,64})?@)?"
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]{1,20}"
_OPAQUE = rf"(?:urn|mailto|tel|data|geo|news|doi):{_PCHAR}(?:{_PCHAR}|/)*"
_URI = _any(rf"{_SCHEME}://{_USER}{_HOST}{_PATH}{_TAIL}", _OPAQUE)
_HTTP = rf"https?://{_USER}{_HOST}{_PATH}{_TAIL}"
_SEGMENT = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-F]{2})"
_URI_REFERENCE = _any(_URI, rf"(?:/?{_SEGMENT}+{_PATH}|/)?{_TAIL}")
_MULTI_HOST = rf"{_SCHEME}://{_USER}{_HOST}(?:,{_HOST})*{_PATH}{_TAIL}"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "date-time": rf"{_DATE}T{_TIME}{_OFFSET}",
    "time": _TIME + _OFFSET,
    "duration": _DURATION,
    "uuid": rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipv4interface": _IPV4 + _IPV4_PREFIX,
    "ipv6interface": _IPV6 + _IPV6_PREFIX,
    "ipv4network": _IPV4_NETWORK,
    "ipv6network": _IPV6_NETWORK,
    "ipvanyaddress": _any(_IPV4, _IPV6),
    "ipvanyinterface": _any(_IPV4 + _IPV4_PREFIX, _IPV6 + _IPV6_PREFIX),
    "ipvanynetwork": _any(_IPV4_NETWORK, _IPV6_NETWORK),
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "name-email": rf"[A-Za-z][A-Za-z ]{{0,40}}[A-Za-z] <{_EMAIL}>",
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri-reference": _URI_REFERENCE,
    "multi-host-uri": _MULTI_HOST,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]{{0,3}})(?:#|{_POINTER})",
    **dict.fromkeys(
        ("base64", "byte"), r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
    ),
    "base64url": r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?",
}
"""Regular expressions of whole strings, by format."""

LOOSE: dict[str, str] = {
    "date-time": rf"{_DATE}T{_MINUTE}(?:{_SECOND})?{_OFFSET}?",
    "time": rf"{_MINUTE}(?:{_SECOND})?{_OFFSET}?",
}
"""Beside a pattern of the schema's own, which may ask for less than the format does (no offset, no seconds)."""

MAX_HTTP_LENGTH = 2083
"""pydantic's ``HttpUrl`` shows in a schema by this ``maxLength`` and nothing else."""

FREE = frozenset(("password", "binary", "path", "string", "text"))
"""Formats that any string has."""


def format_pattern(name: str, max_length: object, *, has_pattern: bool) -> str | None:
    """The regular expression of a whole string of a format; ``None`` if it has none.

    Args:
        max_length: the schema's ``maxLength``, if any.
        has_pattern: whether the schema has a pattern as well, which the string must match too.
    """
    if name == "uri" and max_length == MAX_HTTP_LENGTH:
        return _HTTP
    return LOOSE.get(name, FORMATS.get(name)) if has_pattern else FORMATS.get(name)
