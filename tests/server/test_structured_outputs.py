"""Forms of outputs over HTTP: every field that can ask for one, every limit, and one that fails among others."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from headway.build import build_engine
from headway.config import EngineOptions, Structured
from headway.engine.engine import Engine
from headway.models.tiny import make_tiny
from tests.engine.builders import ScriptedExecutor, echo, make_engine
from tests.server.running import PATIENCE_S, Running, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
CHAT = {"messages": [{"role": "user", "content": "a person"}], "max_tokens": 200}


def is_person(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "age"] and len(value["name"]) <= 5 and 0 <= value["age"] <= 9


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return build_engine(EngineOptions(model=str(make_tiny(tmp_path_factory.mktemp("forms"))), num_blocks=400))


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Running]:
    with serving(engine=engine, options={"max_form_chars": 500, "max_regex_chars": 50, "form_timeout": 20}) as running:
        yield running
        running.rest()


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"response_format": WRAPPED}, is_person),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_person),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, is_person),
        ({"response_format": {"type": "regex", "regex": "[a-c]{4}"}}, matches("[a-c]{4}")),
        ({"structured_outputs": {"json": SCHEMA}}, is_person),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_person),
        ({"structured_outputs": {"regex": r"\d{3}"}}, matches("[0-9]{3}")),
        ({"structured_outputs": {"choice": ["red", "green"]}}, matches("red|green")),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, matches("a[0-9]")),
        ({"guided_json": SCHEMA}, is_person),
        ({"guided_regex": "x{2}y?"}, matches("xxy?")),
        ({"guided_choice": ["é", "ü!"]}, matches("é|ü!")),
        ({"guided_grammar": 'start: "q" | "r"'}, matches("q|r")),
    ],
    ids=lambda value: "" if callable(value) else str(value),  # a function's text has its address in it
)
def test_outputs_have_the_form(server: Running, fields: dict[str, Any], fits: Callable[[str], bool]) -> None:
    for settings in ({"temperature": 0}, {"seed": 1}):
        body = {**CHAT, **fields, **settings}
        choice = server.post("/v1/chat/completions", body).json()["choices"][0]
        streamed = server.stream("/v1/chat/completions", body)
        text = server.complete("a person", max_tokens=200, **fields, **settings).json()["choices"][0]["text"]

        assert choice["finish_reason"] == "stop"
        assert fits(choice["message"]["content"]) and fits(text)
        joined = "".join(event["choices"][0]["delta"].get("content", "") for event in streamed)
        assert joined == choice["message"]["content"]


def test_any_object_will_do(server: Running) -> None:
    body = {**CHAT, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 300}
    choice = server.post("/v1/chat/completions", body).json()["choices"][0]

    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length" or is_object(choice["message"]["content"])


def test_the_clients_own_models_are_parsed(server: Running) -> None:
    class Answer(BaseModel):
        colour: bool
        digits: list[int] | None

    with server.openai() as client:
        answer = client.chat.completions.parse(
            model=server.service.models[0], messages=CHAT["messages"], response_format=Answer, seed=2, max_tokens=400
        )

    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_plain_text_is_no_form(server: Running) -> None:
    plain = server.post("/v1/chat/completions", {**CHAT, "temperature": 0, "max_tokens": 5}).json()
    typed = {**CHAT, "temperature": 0, "max_tokens": 5, "response_format": {"type": "text"}}

    assert server.post("/v1/chat/completions", typed).json()["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "unsupported", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value", "field json_schema"),
        ({"response_format": {"type": "regex"}}, "response_format", "invalid_value", "field regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format", "invalid_value", "cannot be compiled: Unsatisfiable schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "shema": {}}}},
            "response_format.json_schema.shema", "unknown_parameter", "did you mean 'schema'?",
        ),
        ({"guided_regex": "(a"}, "guided_regex", "invalid_value", "unclosed group"),
        ({"guided_regex": ""}, "guided_regex", "invalid_value", "must not be empty"),
        ({"guided_regex": "a" * 51}, "guided_regex", "limit_exceeded", "has 51 characters; at most 50"),
        ({"guided_choice": ["a" * 500]}, "guided_choice", "limit_exceeded", "at most 500"),
        ({"guided_choice": []}, "guided_choice", "invalid_value", "none of them empty"),
        ({"guided_json": {"enum": ["x" * 500]}}, "guided_json", "limit_exceeded", "at most 500"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "unknown_parameter", "unknown parameter"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value", "just one of json"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "invalid_value", "must be text"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "invalid_value", "cannot be compiled"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_value", "both say what form"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "invalid_value", "cannot go with structured"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_forms_are_refused(server: Running, fields: dict[str, Any], param: str, code: str, message: str) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"})):
        answer = server.post(path, {**body, **fields})

        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code)
        assert message in error["message"]


def test_one_form_that_fails_leaves_the_others_alone(server: Running) -> None:
    def ask(number: int) -> httpx.Response:
        fields: dict[str, Any] = {"guided_choice": ["abc"], "seed": number, "max_tokens": 30}
        return server.complete("a", **fields, min_tokens=20 if number == 3 else 0)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))

    assert [answer.status_code for answer in answers] == [200] * 3 + [400] + [200] * 4
    assert answers[3].json()["error"]["code"] == "structured_output_failed"
    assert {answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200} == {"abc"}
    server.rest()


def test_candidates_of_a_call_share_their_form(server: Running) -> None:
    answer = server.complete("a", guided_regex="[a-d]{6}", n=6, seed=3, max_tokens=10).json()

    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) > 2
    assert all(re.fullmatch("[a-d]{6}", text) for text in texts)


def test_an_engine_without_forms_says_so() -> None:
    with serving() as plain:
        error = plain.complete("a", guided_regex="a").json()["error"]

    assert (error["param"], error["code"]) == ("guided_regex", "invalid_value")


class SlowCompiler:
    """Compiles nothing until it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.texts: list[str] = []

    def __call__(self, form: Structured) -> Structured:
        self.texts.append(form.text)
        assert self.go_on.wait(PATIENCE_S)
        return form


def test_a_server_is_warm_before_the_first_form_comes() -> None:
    compiler = SlowCompiler()
    engine = make_engine(ScriptedExecutor(echo))
    engine.compile_form = compiler
    compiler.go_on.set()
    with serving(engine=engine) as server:
        server.until(lambda: bool(compiler.texts))
        assert server.complete("a", max_tokens=1).status_code == 200


def test_a_form_that_takes_too_long_is_refused_and_the_next_have_to_come_again() -> None:
    compiler = SlowCompiler()
    with serving(options={"form_timeout": 1.0}) as server:
        server.service._compiling._compile_form = compiler
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda text: server.complete("a", guided_regex=text), "abc"))
        assert server.complete("a", max_tokens=1).status_code == 200
        compiler.go_on.set()
        server.rest()

    assert sorted(answer.status_code for answer in answers) == [400, 400, 503]
    errors = {answer.status_code: answer.json()["error"] for answer in answers}
    assert (errors[400]["param"], errors[400]["code"]) == ("guided_regex", "limit_exceeded")
    assert "more than 1 seconds" in errors[400]["message"]
    assert errors[503]["code"] == "compile_queue"
    assert len(compiler.texts) == 2


def test_a_client_that_leaves_while_its_form_is_compiled_leaves_nothing_behind() -> None:
    compiler = SlowCompiler()
    with serving() as server:
        server.service._compiling._compile_form = compiler
        connection = server.connect("/v1/completions", {"prompt": "a", "guided_regex": "a"})
        server.until(lambda: bool(compiler.texts))
        connection.close()
        server.until(lambda: not server.service.calls)
        compiler.go_on.set()
        server.rest()


def test_the_official_client_sends_forms_as_extra_fields(server: Running) -> None:
    with server.openai() as client:
        answer = client.completions.create(
            model=server.service.models[0], prompt="a", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
        )
        with pytest.raises(openai.BadRequestError, match="unclosed group"):
            client.completions.create(
                model=server.service.models[0], prompt="a", extra_body={"structured_outputs": {"regex": "("}}
            )

    assert answer.choices[0].text in ("yes", "no")


UNIQUE = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}},
    "required": ["tags"],
    "additionalProperties": False,
}


def wrapped(schema: dict[str, Any], strict: bool | None) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}
    }


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (wrapped(UNIQUE, None), "response_format.json_schema.schema"),
        (wrapped(UNIQUE, False), "response_format.json_schema.schema"),
        ({"guided_json": UNIQUE}, "guided_json"),
        ({"structured_outputs": {"json": json.dumps(UNIQUE)}}, "structured_outputs.json"),
    ],
    ids=str,
)
def test_what_is_not_kept_to_is_told_in_a_header(server: Running, fields: dict[str, Any], place: str) -> None:
    body = {**CHAT, **fields, "seed": 1}
    whole = server.post("/v1/chat/completions", body)
    with server.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        headers = [whole.headers, stream.headers]

    assert {each["x-headway-warning"] for each in headers} == {f"{place}.properties.tags.uniqueItems is not enforced"}
    assert set(json.loads(whole.json()["choices"][0]["message"]["content"])["tags"]) <= {1, 2}


def test_there_is_no_such_header_if_all_is_kept_to_and_a_hostile_name_does_not_break_it(server: Running) -> None:
    good = server.complete("a", guided_json=SCHEMA, max_tokens=1)
    names = {f"é\r\nX-Evil: {place}": {"type": "array", "uniqueItems": True} for place in range(7)}
    bad = server.complete("a", guided_json={"properties": names}, max_tokens=1)

    assert "x-headway-warning" not in good.headers
    assert bad.status_code == 200 and "x-evil" not in bad.headers
    assert bad.headers["x-headway-warning"].endswith("; and 2 more")


def test_a_strict_schema_that_cannot_be_kept_to_is_refused_with_the_place(server: Running) -> None:
    answer = server.post("/v1/chat/completions", {**CHAT, **wrapped(UNIQUE, True)})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported")
    assert error["param"] == "response_format.json_schema.schema.properties.tags.uniqueItems"
    assert "cannot be enforced" in error["message"]


def test_real_dates_and_unknown_formats_in_strict_schemas(server: Running) -> None:
    for format_name in ("date", "made-up"):
        answer = server.complete("a", **wrapped({"type": "string", "format": format_name}, True), max_tokens=9, seed=1)
        assert answer.status_code == 200
        assert ("made-up" in answer.headers.get("x-headway-warning", "")) is (format_name == "made-up")
