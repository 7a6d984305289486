"""A real browser, which opens the console's pages and takes screenshots of them."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes.gateway import Door
from support.programs.program import program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AT_MOST_MS = 20_000
_UNUSED = (
    # Pages of the browser's own that each window loads beside the one of a test: half of the CPU of a short test.
    *("InitialWebUI", "StartingWebUI", "PreloadTopChromeWebUI", "WebUIToolbar", "WebUIReloadButton", "WebUIHomeButton"),
    *("WebUIBackForwardButton", "WebUILocationBar", "WebUIOmniboxPopup", "WebUIOmniboxFullPopup"),
    *("WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    # What Playwright turns off, and would be on again: the last list counts.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "PaintHolding"),
    *("HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "ThirdPartyStoragePartitioning"),
    *("AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled"),
    "PreconnectToSearch",
)
OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", f"--disable-features={','.join(_UNUSED)}")
"""How Chromium starts; a name that it does not know has no effect."""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Start Chromium. Skip the test if Chromium or playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests
    chromium = program("chromium", "chromium-browser", "google-chrome")
    playwright.expect.set_options(timeout=AT_MOST_MS)
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture
def view(browser: "Browser", request: pytest.FixtureRequest) -> Iterator["Page"]:
    """Open a page. Fail the test if a script fails, or if the page requests anything from another host."""
    with view_of(browser, request.node.name) as page:
        yield page


@contextlib.contextmanager
def view_of(browser: "Browser", name: str, **options: object) -> Iterator["Page"]:
    """Open such a page with options of the browser's context; `name` is the name of the test."""
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
    """Take a screenshot for the docs if `make screenshots` runs. Names lose the token of this run."""
    if directory := os.environ.get("LAPSE_SCREENSHOTS"):
        if (chart := page.locator("#chart")).count():  # wait until the chart has a line instead of a dot
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


def notice(page: "Page", text: str, at_most_ms: int = AT_MOST_MS) -> None:
    """Wait until the page's notice contains a text."""
    from playwright.sync_api import expect

    expect(page.locator("#notice")).to_contain_text(text, timeout=at_most_ms)
