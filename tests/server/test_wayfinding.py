"""Wrong base paths, slashes, cases and methods: the error names the right way, for every route there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.server.wayfinding import Signpost
from tests.server.running import Running, serving

API = {
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
    "/v1/models": ("GET",),
    "/v1/models/bytes": ("GET",),
    "/v1/abort/some-call": ("POST",),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/health": ("GET", "HEAD"),
    "/health/live": ("GET", "HEAD"),
    "/health/ready": ("GET", "HEAD"),
    "/metrics": ("GET",),
    "/version": ("GET",),
    "/debug/requests": ("GET",),
    "/debug/state": ("GET",),
    "/openapi.json": ("GET", "HEAD"),
}
FREE_TAILS = ("/v1/models/", "/page/", "/debug/requests/")
"""Whatever follows these is a name, so it cannot be a path that is not there."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


def error_of(server: Running, method: str, path: str) -> tuple[int, str, str]:
    answer = server.http.request(method, path)
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return answer.status_code, error["code"], error["message"]


def test_the_list_of_this_test_is_complete(server: Running) -> None:
    described = {path.replace("{name}", "bytes") for path in server.http.get("/openapi.json").json()["paths"]}
    known = set(API)
    assert {path for path in described if "{" not in path} - {"/"} - known == set()


@pytest.mark.parametrize("path", API)
def test_other_methods_are_told_which_ones_there_are(server: Running, path: str) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - set(API[path]):
        answer = server.http.request(method, path)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == set(API[path])
        assert answer.json()["error"]["message"] == f"{method} {path}: this path takes {' or '.join(API[path])}"


def wrong_ways(path: str) -> list[str]:
    bare = path.removeprefix("/v1")
    ways = [path + "/", "/v1/v1" + bare, "/api" + path if path.startswith("/v1") else "/v1" + path, path.upper()]
    return ways + ([bare, bare + "/", bare.title()] if bare != path else [])


@pytest.mark.parametrize("path", API)
def test_a_path_that_is_nearly_right_is_put_right(server: Running, path: str) -> None:
    tried = 0
    for wrong in wrong_ways(path):
        if wrong in API or (wrong.startswith(FREE_TAILS) and not wrong.endswith("/")):  # it leads somewhere else
            continue
        tried += 1
        assert error_of(server, API[path][0], wrong) == (
            404,
            "not_found",
            f"{API[path][0]} {wrong}: there is no such path; did you mean {path}?",
        )
    assert tried >= 2


def test_what_is_like_nothing_is_only_told_so(server: Running) -> None:
    assert error_of(server, "GET", "/nowhere") == (404, "not_found", "GET /nowhere: there is no such path")
    assert error_of(server, "POST", "/v1/audio/speech")[2] == "POST /v1/audio/speech: there is no such path"


def test_slashes_in_the_middle_are_put_right(server: Running) -> None:
    signpost = Signpost(server.server.config.app.routes)  # type: ignore[union-attr]
    assert signpost.nearest("/v1//chat///completions") == "/v1/chat/completions"
    assert signpost.nearest("/v1/chat/completions") is None


@pytest.mark.parametrize(
    ("method", "wrong", "advice"),
    [
        ("GET", "/chat/completions", "did you mean /v1/chat/completions, which takes POST?"),
        ("POST", "/models/", "did you mean /v1/models, which takes GET?"),
        ("POST", "/v1/chat/completions/chat/completions", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/completions/chat/completions", "did you mean /v1/chat/completions?"),
        ("GET", "/v1/chat/completions/models", "did you mean /v1/models?"),
        ("POST", "/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("POST", "/V1/Completion", "did you mean /v1/completions?"),
        ("GET", "/v1/models/bytes/", "did you mean /v1/models/bytes?"),
        ("GET", "/debug/requests/some-call/", "did you mean /debug/requests/some-call?"),
        ("POST", "/tokenise", "did you mean /tokenize?"),
        ("GET", "/v1", "this is where the API begins; what there is goes on from it, like /v1/models"),
        ("POST", "/v1/", "this is where the API begins; what there is goes on from it, like /v1/models"),
        ("GET", "/page/nothing.js", "there is no such path"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_mistakes_with_the_base_of_paths(server: Running, method: str, wrong: str, advice: str) -> None:
    status, code, message = error_of(server, method, wrong)

    assert (status, code) == (404, "not_found")
    assert message.endswith(advice)


def test_for_a_path_that_is_longer_than_any_nothing_is_looked_for(server: Running) -> None:
    message = error_of(server, "GET", "/x" * 20_000)[2]

    assert message.endswith("/x...: there is no such path")
    assert len(message) < 600


def test_a_model_that_is_not_served_is_no_slash_too_many(server: Running) -> None:
    assert error_of(server, "GET", "/v1/models/other/")[1] == "model_not_found"
