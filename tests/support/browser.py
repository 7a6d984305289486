"""A real browser, for the console: its pages, and their pictures."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.gateway import Door
from support.program import program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AT_MOST_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium; where it, or playwright, is missing, its tests are skipped: the other tests show everything else."""
    playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests
    chromium = program("chromium", "chromium-browser", "google-chrome")
    playwright.expect.set_options(timeout=AT_MOST_MS)
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture
def view(browser: "Browser", request: pytest.FixtureRequest) -> Iterator["Page"]:
    """A page in which no script fails, and nothing is asked of another host."""
    with view_of(browser, request.node.name) as page:
        yield page


@contextlib.contextmanager
def view_of(browser: "Browser", name: str, **options: object) -> Iterator["Page"]:
    """The same with options of its own; `name` is what the test is called."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(AT_MOST_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    hosts: set[str] = set()
    page.on("request", lambda one: hosts.add(re.match(r"\w+:/*([^:/]*)", one.url)[1]))  # type: ignore[index]
    yield page
    context.close()
    assert faults == []
    assert hosts <= {"127.0.0.1", ""}


def shot(page: "Page", gateway: Door, name: str) -> None:
    """Take a picture for the docs, where `make screenshots` asks for it; names without what makes them this run's."""
    if directory := os.environ.get("LAPSE_SCREENSHOTS"):
        if (chart := page.locator("#chart")).count():  # a line, and no dot
            from playwright.sync_api import expect

            expect(chart).to_have_attribute("data-points", re.compile(r"^([5-9]|\d\d+)$"))
        page.evaluate(
            """token => {
                const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(token, "");
                for (const one of document.querySelectorAll("input"))
                    one.value = one.value.replaceAll(token.slice(1), "");
            }""",
            f"-{gateway.deployment.token}",
        )
        page.screenshot(path=str(Path(directory) / f"console-{name}.png"))


def notice(page: "Page", text: str) -> None:
    """The page tells this of what was done."""
    from playwright.sync_api import expect

    expect(page.locator("#notice")).to_contain_text(text)
