"""Compiled forms allow what they should, token by token, whatever the tokens are; bad forms are refused in words."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import numpy as np
import pytest

from headway.config import ConfigError, Structured
from headway.executor.grammars import NUM_CACHED, CompiledForm, GuidanceGrammars
from tests.engine.builders import BOS, EOS, ByteTokenizer

PIECES = [b'{"', b'":', b"true", b", ", b"   ", b"\n\n", "é".encode(), b"\xc3", b"abc", b"12"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> GuidanceGrammars:
    tokenizer = ByteTokenizer(PIECES)
    return GuidanceGrammars(tokenizer, tokenizer.vocab_size + 5, [EOS])


def allowed(grammars: GuidanceGrammars, matcher: Any) -> list[int]:
    """Ids that may come next."""
    bits = np.zeros((1, 9), np.int32)
    grammars.fill([matcher], bits)
    assert matcher.error == ""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def walk(grammars: GuidanceGrammars, form: Structured, seed: int) -> bytes:
    """A random output."""
    tokenizer, matcher, random = ByteTokenizer(PIECES), grammars.start(form), np.random.default_rng(seed)
    output: list[int] = []
    while len(output) < 400:
        tokens = allowed(grammars, matcher)
        assert BOS not in tokens and max(tokens) < tokenizer.vocab_size
        token = int(random.choice(tokens))
        if token == EOS:
            return b"".join(map(tokenizer.id_to_bytes, output))
        matcher.consume([token])
        output.append(token)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(5))
def test_json_fits_its_schema(grammars: GuidanceGrammars, seed: int) -> None:
    text = walk(grammars, Structured.json(SCHEMA), seed).decode()
    value = json.loads(text)

    assert list(value) == ["name", "age", "tags", "next"]
    assert len(value["name"]) <= 8 and 0 <= value["age"] <= 150 and value["next"] in (None, True, False)
    assert len(value["tags"]) <= 2 and set(value["tags"]) <= {"a", "b"}
    assert re.search(r"[ \t]{21}|\n\s*\n", text) is None


@pytest.mark.parametrize(
    "pattern", [r"\d{3}-[a-f]{2}", "(yes|no)!?", r"[^a]/\\x\n", "^a+b$", "(?i)abc", "é{2}", r"\w{1,3}\s\.", "a|"]
)
def test_a_regular_expression_matches_the_whole_output(grammars: GuidanceGrammars, pattern: str) -> None:
    for seed in range(3):
        assert re.fullmatch(pattern, walk(grammars, Structured.regex(pattern), seed).decode())


def test_a_choice_is_one_of_its_texts(grammars: GuidanceGrammars) -> None:
    texts = ["yes", "no, never", 'quo"te\\', "tab\tline\n", "é😀", "ab", "abc"]

    found = {walk(grammars, Structured.choice(texts), seed).decode() for seed in range(60)}

    assert found == set(texts)


def test_thousands_of_choices_are_no_problem(grammars: GuidanceGrammars) -> None:
    texts = [f"{number * 7919 % 100003:05d}" for number in range(5000)]

    assert walk(grammars, Structured.choice(texts), 3).decode() in texts


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('start: "a" DIGIT\nDIGIT: /[0-9]/', "a[0-9]"),
        ('root ::= "x" ("y" | "z") [0-9]', "x[yz][0-9]"),
        ('start: "f(" arg ")"\narg: %json {"enum": [1, 2]}', r"f\([12]\)"),
    ],
)
def test_grammars_are_lark_or_gbnf(grammars: GuidanceGrammars, grammar: str, pattern: str) -> None:
    assert re.fullmatch(pattern, walk(grammars, Structured.grammar(grammar), 1).decode())


def test_the_end_is_allowed_where_the_form_may_end_and_nowhere_else(grammars: GuidanceGrammars) -> None:
    matcher = grammars.start(Structured.regex("ab?"))
    seen = [EOS in allowed(grammars, matcher)]
    for byte in b"ab":
        matcher.consume([byte])
        seen.append(EOS in allowed(grammars, matcher))

    assert seen == [False, True, True]
    assert allowed(grammars, matcher) == [EOS]


def test_forced_text_may_be_written_in_any_tokens(grammars: GuidanceGrammars) -> None:
    matcher = grammars.start(Structured.choice(["abcd"]))

    assert {ByteTokenizer(PIECES).id_to_bytes(token) for token in allowed(grammars, matcher)} == {b"a", b"abc"}


def test_many_masks_at_once_are_the_masks_one_by_one(grammars: GuidanceGrammars) -> None:
    forms = [Structured.regex("a+"), Structured.json(SCHEMA), Structured.choice(["abcd", "12"])]
    matchers = [grammars.start(form) for form in forms]
    bits = np.zeros((4, 9), np.int32)

    grammars.fill(matchers, bits)

    for row, matcher in enumerate(matchers):
        alone = np.zeros((1, 9), np.int32)
        grammars.fill([matcher], alone)
        assert (bits[row] == alone[0]).all()
    assert not bits[3].any()


def test_matchers_of_one_form_are_independent(grammars: GuidanceGrammars) -> None:
    first, second = grammars.start(Structured.regex("ab")), grammars.start(Structured.regex("ab"))
    first.consume([ord("a")])

    assert allowed(grammars, first) == [ord("b")]
    assert ord("a") in allowed(grammars, second)


def test_a_token_that_does_not_fit_is_an_error(grammars: GuidanceGrammars) -> None:
    matcher = grammars.start(Structured.regex("ab"))
    matcher.consume([ord("x")])

    assert matcher.error


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Structured.json('{"type": "objekt"}'), "Invalid type: objekt"),
        (Structured.json('{"not": {}}'), "Unsatisfiable schema"),
        (Structured.json('{"$ref": "https://example.org/x.json"}'), "example.org"),
        (Structured.json('{"enum": []}'), "Unsatisfiable schema"),
        (Structured.json("[1]"), "must be a JSON schema"),
        (Structured.json("{"), "Expecting property name"),
        (Structured("json", '{"a":' * 100000), "more than 100 deep"),
        (Structured.regex("(a"), "unclosed group"),
        (Structured.regex("(?=a)b"), "look-around"),
        (Structured.regex("\ud83d"), "surrogates not allowed"),
        (Structured.grammar("start: nowhere"), "unknown name"),
        (Structured.grammar("root ::= ("), "Expected ')'"),
    ],
    ids=str,
)
def test_a_bad_form_is_refused_with_the_reason(grammars: GuidanceGrammars, form: Structured, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grammars.compile(form)

    assert caught.value.field == "structured"
    assert reason in caught.value.limit
    assert "\n" not in caught.value.limit and len(caught.value.limit) < 400


def test_a_form_that_costs_too_much_fails_without_an_exception(grammars: GuidanceGrammars) -> None:
    rule = " | ".join(f'"{number}"' for number in range(5000))
    matcher = grammars.start(Structured.grammar(f"start: {rule}"))
    matcher.consume([ord("4")])

    grammars.fill([matcher], np.zeros((1, 9), np.int32))

    assert "Current row has 5001 items" in matcher.error


def test_a_form_is_compiled_once_and_the_oldest_are_forgotten(grammars: GuidanceGrammars) -> None:
    first = grammars.compile(Structured.choice(["0"]))
    assert grammars.compile(Structured.choice(["0"])) is first
    assert grammars.compile(first) is first

    for number in range(NUM_CACHED):
        grammars.compile(Structured.choice([f"x{number}"]))

    assert grammars.compile(Structured.choice(["0"])) is not first


def test_a_compiled_form_travels_as_text(grammars: GuidanceGrammars) -> None:
    compiled = grammars.compile(Structured.regex("ab"))

    assert isinstance(compiled, CompiledForm)
    assert pickle.loads(pickle.dumps(compiled)) == Structured.regex("ab")
    assert copy.deepcopy(compiled) == Structured.regex("ab")


def test_a_model_without_an_end_of_text_token_has_no_forms() -> None:
    with pytest.raises(ConfigError, match="needs a model that has an end-of-text token"):
        GuidanceGrammars(ByteTokenizer(), 300, []).compile(Structured.regex("a"))
