"""A real Chromium that can reach nothing but loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, Playwright, Route, sync_playwright

from layerscope.server.app import STATIC

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
LOOPBACK = "http://127.0.0.1:"


def missing(what: str) -> None:
    """Skip, saying what is missing; in CI that is a failure, so that nothing is left out unseen."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def chromium() -> str:
    given = os.environ.get("LAYERSCOPE_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing(
            f"No Chromium: none of {', '.join(NAMES)} is on the PATH. Install the package `chromium`, "
            "or name the program in LAYERSCOPE_CHROMIUM."
        )
    assert found is not None
    return found


@dataclass
class Visit:
    """A page in the browser, what it asked for elsewhere, and what went wrong in it."""

    page: Page
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    if not (STATIC / "index.html").is_file():
        missing("The page is not built: run `npm install` and `npm run build` in `web`.")
    browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
    yield browser
    browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    visit = Visit(context.new_page())

    def only_loopback(route: Route) -> None:
        if route.request.url.startswith(LOOPBACK):
            route.continue_()
        else:
            visit.foreign.append(route.request.url)
            route.abort()

    context.route("**/*", only_loopback)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    yield visit
    context.close()
    assert visit.foreign == []
    assert visit.errors == []
