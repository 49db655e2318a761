"""The page in a real browser: what it shows, what it asks, and how it is used with a keyboard alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from headway.engine.metrics import MemoryUse
from headway.server.routes.page import FILES
from tests.engine.builders import ScriptedExecutor
from tests.server.browsing import chromium
from tests.server.running import Gate, Running, serving

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def endless(request_id: str, prompt: list[int]) -> list[int]:
    """Outputs that go on for longer than any test looks at them."""
    return list(b"Once upon a time there was a very patient server. ") * 200


def slowly(plan: object) -> None:
    """A step takes a moment, so that there is something to look at."""
    time.sleep(0.01)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def server() -> Iterator[Running]:
    """Room for two requests at a time, whose answers take long."""
    with slow_server() as running:
        yield running


@contextmanager
def slow_server(**overrides: Any) -> Iterator[Running]:
    executor = ScriptedExecutor(endless, before=slowly)
    with serving(executor, **{"max_num_seqs": 2, "max_model_len": 8192, "num_blocks": 4000, **overrides}) as running:
        yield running


@pytest.fixture
def look(browser: Browser, server: Running) -> Iterator[Callable[..., Page]]:
    """Opens the page of ``server``."""
    with pages(browser) as opened:
        yield lambda **options: opened(server.url, **options)


@contextmanager
def pages(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages of any server. Whatever went wrong in them is an error at the end."""
    problems: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    def opened(url: str, **options: Any) -> Page:
        def check(request: Request) -> None:
            if not request.url.startswith((url, "data:")):
                problems.append(f"the page asked for {request.url}")

        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check)
        page.goto(url)
        return page

    try:
        yield opened
    finally:
        for context in contexts:
            context.close()
    assert problems == []


@contextmanager
def running_calls(server: Running, *names: str, **fields: Any) -> Iterator[None]:
    """Calls that run until the block ends; their prompts have nothing in common."""
    connections = []
    for index, name in enumerate(names):
        body = {"prompt": [index + 1] * 40, "max_tokens": 4000, **fields}
        connections.append(server.connect("/v1/completions", body, headers=f"X-Request-Id: {name}\r\n"))
        server.until(lambda: server.service.engine.num_open >= len(connections))
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


def test_an_idle_server(look: Callable[..., Page]) -> None:
    page = look()

    expect(page.locator("#status")).to_have_text("idle")
    expect(page.locator("#model")).to_have_text("bytes")
    expect(page.locator("#running")).to_have_text("0")
    expect(page.locator("#rows-empty")).to_be_visible()
    expect(page.locator("#queue-empty")).to_be_visible()
    expect(page.locator("#pool-free")).to_have_text("4,000")
    assert page.title() == "0 running, 0 waiting | Headway"


def test_what_memory_is_taken_of_what_is_reserved(look: Callable[..., Page], server: Running) -> None:
    server.engine.memory_use = lambda: MemoryUse(8192 * 2**20, 60 * 2**20, 0, 0)
    page = look()

    expect(page.locator("#memory")).to_contain_text("KV memory resident60 of 8,192 MiB")
    expect(page.locator("#memory")).not_to_contain_text("Swap space")


def test_who_runs_and_why_the_others_wait(look: Callable[..., Page], server: Running) -> None:
    with running_calls(server, "first", "second", "third", "fourth"):
        page = look()

        rows, queue = page.locator("#rows tr"), page.locator("#queue tr")
        expect(rows).to_have_count(2)
        expect(queue).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("first")
        expect(rows.nth(0)).to_contain_text(re.compile(r"\d+ / 4,000"))
        third, fourth = queue.nth(0), queue.nth(1)
        expect(third).to_contain_text("All slots taken")
        expect(third.locator("details p")).to_have_text(
            re.compile(
                r"All 2 slots \(max_num_seqs\) are taken\. Until: a running request ends.* In the way: first, second"
            )
        )
        expect(third.locator("details p")).to_be_visible()
        expect(fourth.locator("summary")).to_have_text(re.compile("^Behind others in the queue, "))
        expect(fourth.locator("details p")).to_be_hidden()
        fourth.locator("summary").click()
        expect(fourth.locator("details p")).to_contain_text(
            "1 request is before it in the queue. Until: those before it"
        )
        expect(page.locator("#reasons")).to_have_text("1 behind others in the queue1 all slots taken")
        expect(page.locator("#status")).to_have_text("running")
        expect(page.locator("#ttft")).to_have_text(re.compile("s$"))
        expect(page.locator("#parts")).to_contain_text("Scheduling")
        expect(page.locator("#steps-text")).to_contain_text("of the budget of 64 tokens a step")
        expect(page.locator("#pool-held")).not_to_have_text("0")
    expect(page.locator("#running")).to_have_text("0")
    server.rest()


def test_long_tables_are_cut_until_all_is_asked_for(look: Callable[..., Page], server: Running) -> None:
    with running_calls(server, *(f"call-{number}" for number in range(22))):
        page = look()
        expect(page.locator("#queue tr")).to_have_count(12)
        page.get_by_label("Message").fill("Me too")
        page.keyboard.press("Enter")
        expect(page.locator("#queue tr.own")).to_have_count(1)
        expect(page.locator("#queue tr")).to_have_count(13)
        more = page.get_by_role("button", name="Show all 21")
        more.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#queue tr")).to_have_count(21)
        page.get_by_role("button", name="Show the first 12").click()
        expect(page.locator("#queue tr")).to_have_count(13)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#queue tr")).to_have_count(12)


def test_the_charts_tell_what_they_show_to_a_keyboard(look: Callable[..., Page], server: Running) -> None:
    with running_calls(server, "first", "second"):
        page = look()
        expect(page.locator("#rows tr")).to_have_count(2)
        page.locator("#steps").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#steps-text")).to_contain_text(
            re.compile(r"Step \d+: 2 decode \+ 0 prefill tokens in 2 rows")
        )
        page.locator("#pool").focus()
        expect(page.locator("#steps-text")).to_contain_text("The last")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#pool-text")).to_have_text("Block 1: held by first in slot 0.")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#pool-text")).to_have_text(re.compile(r"Block \d\d+: (free|held by)"))
        swatch = page.get_by_role("button", name="Show the blocks of second")
        swatch.focus()
        page.keyboard.press("Enter")
        expect(swatch).to_have_attribute("aria-pressed", "true")


def test_a_chat_streams_and_can_be_stopped_by_keyboard(look: Callable[..., Page], server: Running) -> None:
    page = look()
    expect(page.locator("#status")).to_have_text("idle")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to chat")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type("Tell me a story")
    page.keyboard.press("Enter")

    answer = page.locator(".turn.assistant p")
    expect(answer).to_contain_text("Once upon a time")
    expect(page.locator("#chat-log")).to_have_attribute("aria-busy", "true")
    own = page.locator("#rows tr.own")
    expect(own).to_have_count(1)
    expect(own).to_contain_text("page-")
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    stop = page.get_by_role("button", name="Stop")
    stop.focus()
    page.keyboard.press("Enter")
    expect(stop).to_be_hidden()
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.locator("#chat-stats")).to_contain_text("stopped")
    expect(page.locator("#chat-log")).to_have_attribute("aria-busy", "false")
    server.rest()

    page.get_by_label("Max tokens").fill("9")
    page.get_by_label("Message").fill("Go on")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-stats")).to_contain_text("9 tokens")
    expect(page.locator("#chat-stats")).to_contain_text("cut at its length")
    expect(page.locator(".turn.assistant p").nth(1)).to_have_text("Once upon")
    expect(page.locator(".turn")).to_have_count(4)
    server.rest()


def test_errors_of_a_chat_are_shown(browser: Browser) -> None:
    with slow_server(max_model_len=64) as server, pages(browser) as opened:
        page = opened(server.url)
        page.get_by_label("Message").fill("x" * 100)
        page.keyboard.press("Enter")
        expect(page.locator(".turn .problem")).to_contain_text("at most 63 leave room for an output")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Browser) -> None:
    with slow_server(options={"api_key": ("open-sesame",)}) as server, pages(browser) as opened:
        page = opened(server.url)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This server asks for an API key")
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-problem")).to_contain_text("this server needs an API key")
        page.keyboard.type("open-sesame")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#status")).to_have_text("idle")
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]

        page.reload()
        expect(page.locator("#status")).to_have_text("idle")
        page.get_by_label("Max tokens").fill("4")
        page.get_by_label("Message").fill("Hi")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant p")).to_have_text("Once")
        page.get_by_role("button", name="API key").click()
        expect(dialog).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()


def test_names_are_text_and_never_markup(browser: Browser) -> None:
    name = "<img src=x onerror=document.title='run'>"
    with slow_server(options={"served_model_name": (name,)}) as server, pages(browser) as opened:
        page = opened(server.url)
        expect(page.locator("#model")).to_have_text(name)
        assert page.locator("#model img").count() == 0


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_follows_the_colour_scheme(
    look: Callable[..., Page], server: Running, viewport: dict[str, int], scheme: str
) -> None:
    with running_calls(server, "a" * 90, "second", "third", "f" * 120):
        page = look(viewport=viewport, color_scheme=scheme)
        expect(page.locator("#rows tr")).to_have_count(2)
        page.get_by_label("Message").fill("w" * 300)
        page.keyboard.press("Enter")
        expect(page.locator(".turn.user")).to_be_visible()

        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        red, green, blue = map(
            int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
        )
        assert (red + green + blue > 600) == (scheme == "light")
        for selector in ("#steps", "#pool"):
            box = page.locator(selector).bounding_box()
            assert box is not None
            assert box["width"] <= viewport["width"] and box["height"] > 20


def test_every_control_has_a_name_and_shows_its_focus(look: Callable[..., Page], server: Running) -> None:
    with running_calls(server, "first", "second", "third"):
        page = look()
        expect(page.locator("#queue tr")).to_have_count(1)
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, input, textarea, canvas, summary")]
            .filter((element) => !(element.labels?.length || element.textContent.trim() || element.ariaLabel))
            .map((element) => element.outerHTML)"""
        )
        assert nameless == []
        seen = []
        for _ in range(14):
            page.keyboard.press("Tab")
            seen.append(
                page.evaluate(
                    "[document.activeElement.id || document.activeElement.className || document.activeElement.tagName,"
                    " getComputedStyle(document.activeElement).outlineStyle]"
                )
            )

    assert {"skip", "pause", "steps", "pool", "swatch", "SUMMARY", "chat-log", "chat-input", "chat-tokens"} <= {
        name for name, _ in seen
    }
    assert [name for name, outline in seen if outline == "none"] == []


def test_it_asks_only_while_somebody_looks(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#status")).to_have_text("idle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Paused")).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(300)
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []

    page.get_by_role("button", name="Paused").click()
    with page.expect_request("**/debug/state"):
        pass
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(300)
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []
    with page.expect_request("**/debug/state"):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")


def test_it_says_when_what_it_shows_is_old(browser: Browser) -> None:
    gate = Gate()
    executor = ScriptedExecutor(endless, before=gate)
    with pages(browser) as opened:
        with serving(executor, options={"stall_timeout": 0.5}) as server:
            connection = server.connect("/v1/completions", {"prompt": "abc", "max_tokens": 50})
            gate.wait()
            page = opened(server.url)
            expect(page.locator("#status")).to_have_text("frozen")
            expect(page.get_by_role("alert")).to_contain_text("The engine has not answered for", timeout=15_000)
            gate.open()
            expect(page.locator("#status")).to_have_text("idle")
            expect(page.locator("#notice")).to_be_hidden()
            connection.close()
            server.rest()
        expect(page.locator("#status")).to_have_text("unreachable", timeout=15_000)
        expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")


# --- without a browser ---------------------------------------------------------------------------------------


def test_files_are_served_with_their_types_and_nothing_else(server: Running) -> None:
    index = server.http.get("/")
    assert index.headers["content-type"].startswith("text/html")
    linked = re.findall(r'(?:src|href)="(/page/[^"]+)"', index.text)
    assert {"/page/main.js", "/page/style.css", "/page/icon.svg"} <= set(linked)
    for name, (content, media_type, _) in FILES.items():
        answer = server.http.get(f"/page/{name}")
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["content-type"].partition(";")[0] == media_type
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = server.http.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("", "nothing.js", "..%2Fapp.py", "%2e%2e/app.py"):
        assert server.http.get(f"/page/{name}").status_code == 404


def test_files_ask_for_nothing_from_outside() -> None:
    for name, (content, _, _) in FILES.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|//[a-z]+\.", text) == [], name


def test_the_page_needs_no_key_and_what_it_asks_does() -> None:
    with serving(options={"api_key": ("secret",)}) as server:
        assert server.http.get("/").status_code == 200
        assert server.http.get("/page/main.js").status_code == 200
        assert server.http.get("/debug/state").status_code == 401


def test_every_panel_is_in_the_documents() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    titles = re.findall(r'<h2 id="(?!key)[a-z]+-title">([^<]+)</h2>', FILES["index.html"][0].decode())
    tiles = re.findall(r"<h2>([^<]+)</h2>", FILES["index.html"][0].decode())

    assert len(titles) == 10
    assert [title for title in titles if f"**{title}.**" not in document] == []
    assert [title for title in tiles if f"*{title}*" not in document] == []
