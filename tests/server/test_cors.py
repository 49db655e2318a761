"""Pages of other origins: off by default; preflights need no key; errors and streams can be read; a real browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser

from headway.config import ConfigError, ServerOptions
from tests.server.browsing import chromium
from tests.server.running import serving

ORIGIN = "https://app.example"
ASK = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health", "/metrics")


def test_no_page_is_let_in_unless_asked_for() -> None:
    with serving() as server:
        for path in PATHS:
            answer = server.http.options(path, headers=ASK)
            assert answer.status_code == 405
            assert "access-control-allow-origin" not in answer.headers
        assert "access-control-allow-origin" not in server.http.get("/v1/models", headers={"Origin": ORIGIN}).headers


def test_a_preflight_needs_no_key_and_a_call_does() -> None:
    with serving(options={"allowed_origins": (ORIGIN,), "api_key": ("secret",)}) as server:
        for path in PATHS:
            answer = server.http.options(path, headers=ASK)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        refused = server.post("/v1/completions", {"prompt": "a"}, headers={"Origin": ORIGIN})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        other = server.http.options("/v1/completions", headers={**ASK, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_every_answer_can_be_read_errors_and_streams_too() -> None:
    options = {"allowed_origins": ("*",), "max_body_mib": 0.001}
    with serving(options=options) as server:
        origin = {"Origin": ORIGIN}
        answers = [
            server.post("/v1/completions", {"prompt": "a"}, headers=origin),
            server.post("/v1/completions", {"prompt": "a", "temperature": -1}, headers=origin),
            server.post("/v1/completions", {"prompt": "a" * 2000}, headers=origin),
            server.http.get("/nowhere", headers=origin),
            server.post("/v1/completions", {"prompt": "ab", "stream": True}, headers=origin),
        ]
        assert [answer.status_code for answer in answers] == [200, 400, 413, 404, 200]
        assert {answer.headers["access-control-allow-origin"] for answer in answers} == {"*"}
        assert all("X-Request-Id" in answer.headers["access-control-expose-headers"] for answer in answers)


def test_answers_of_a_server_that_ends_or_is_full_or_fails_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"Origin": ORIGIN}
    with serving(options={"allowed_origins": (ORIGIN,)}, max_num_queued_reqs=0) as server:
        full = server.post("/v1/completions", {"prompt": "a"}, headers=origin)
        monkeypatch.setattr(server.service, "open", None)
        failed = server.post("/v1/completions", {"prompt": "a"}, headers=origin)
        monkeypatch.undo()
        server.on_loop(server.service.begin_drain)
        drained = server.post("/v1/completions", {"prompt": "a"}, headers=origin)

    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in (full, failed, drained)]
    assert codes == [(503, "queue_full"), (500, "internal_error"), (503, "draining")]
    for answer in (full, failed, drained):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"X-Request-Id", "Retry-After", "X-Headway-Warning"} <= set(exposed)


def test_methods_and_headers_can_be_narrowed() -> None:
    options = {"allowed_origins": (ORIGIN,), "allowed_methods": ("GET",), "allowed_headers": ("X-Mine",)}
    with serving(options=options) as server:
        assert server.http.options("/v1/completions", headers=ASK).status_code == 400
        ask = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-mine"}
        assert server.http.options("/v1/models", headers=ask).status_code == 200


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"allowed_origins": ("app.example",)}, "allowed_origins"),
        ({"allowed_origins": ("https://app.example/path",)}, "allowed_origins"),
        ({"allowed_methods": ("GET",)}, "allowed_methods"),
        ({"allowed_headers": ("X-Mine",)}, "allowed_headers"),
        ({"allowed_origins": ("*",), "allowed_headers": ("no header",)}, "allowed_headers"),
        ({"allowed_origins": ("*",), "allowed_methods": ()}, "allowed_methods"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        ServerOptions(**options)
    assert refusal.value.field == field


# --- a page of another origin, in a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


class Blank(http.server.BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>another site</title>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def another_site() -> Iterator[str]:
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{site.server_port}"
    finally:
        site.shutdown()
        site.server_close()
        thread.join()


CALL = """async ([url, key, prompt]) => {
  try {
    const answer = await fetch(url + "/v1/completions", {
      method: "POST",
      headers: {"Content-Type": "application/json", "Authorization": "Bearer " + key},
      body: JSON.stringify({prompt, stream: true, max_tokens: 3}),
    });
    return [answer.status, answer.headers.get("x-request-id") !== null, await answer.text()];
  } catch (error) { return [0, false, String(error)]; }
}"""


def test_a_page_of_another_origin_streams_with_a_key(browser: Browser) -> None:
    with another_site() as site:
        with serving(options={"allowed_origins": (site,), "api_key": ("secret",)}) as server:
            page = browser.new_page()
            page.goto(site)
            status, named, text = page.evaluate(CALL, [server.url, "secret", "abc"])
            assert (status, named) == (200, True)
            assert text.endswith("data: [DONE]\n\n")
            status, named, text = page.evaluate(CALL, [server.url, "wrong", "abc"])
            assert status == 401 and "invalid_api_key" in text
            page.close()
        with serving() as server:
            page = browser.new_page()
            page.goto(site)
            assert page.evaluate(CALL, [server.url, "secret", "abc"])[0] == 0
            page.close()
