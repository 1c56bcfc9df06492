"""Headless Chromium for tests of pages: every request, message and error of a page is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import CHROMIUM

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Opened:
    """A page in the browser, and all that it asked for and complained of."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.messages: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", lambda dialog: (self.messages.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.address = path.as_uri()
        page.goto(self.address)

    def check_quiet(self) -> None:
        """It asked for nothing but itself, and complained of nothing."""
        assert [url for url in self.requests if url.partition("#")[0] != self.address] == []
        assert self.messages == []


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(
    browser: Any, text: str, path: Path, *, width: int = 1280, dark: bool = False, calm: bool = True, link: str = ""
) -> Iterator[Opened]:
    """A page of this text, from disk."""
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if calm else "no-preference",
        offline=True,
    )
    page = Opened(context.new_page(), path)
    if link:
        page.page.goto(page.address + link)
        page.page.reload()
    page.page.set_default_timeout(10_000)
    yield page
    context.close()
