"""The page shows what a model reasons apart from what it answers, and does not send it back as an answer."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.server.test_page import browser as browser  # a fixture
from tests.server.test_page import pages
from tests.server.test_reasoning import THINKS, thinker


def test_reasoning_is_shown_apart(browser: Browser) -> None:
    with thinker(THINKS) as (server, model), pages(browser) as opened:
        model.says = "<think>Hm, well.</think>Yes, it is."
        page = opened(server.url)
        page.get_by_label("Message").fill("Is it?")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant p.reasoning")).to_have_text("Hm, well.")
        expect(page.locator(".turn.assistant p:not(.reasoning)")).to_have_text("Yes, it is.")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        page.get_by_label("Message").fill("Sure?")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant p.reasoning")).to_have_count(2)
        assert "<assistant>Yes, it is.<user>Sure?" in model.prompt
