"""What holds for each page of the console: it fits a phone, follows the rules of accessibility, and keeps the focus."""

import re
import time

import pytest

from support import axe
from support.processes.figures import free_port
from support.processes.gateway import Door
from support.programs.browser import shot, view_of
from support.suite.at_length import cases

playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests

QUEUES = {
    "orders": {"lease_period": "60s"},
    "shown": {"expiration": "enabled", "lease_period": "60s"},
    "acted": {"expiration": "enabled", "lease_period": "60s"},
}
SOW = {"prices": {}, "acted-prices": {}}
LAPSE = {"metrics_port": free_port()}


SQUEEZED = """[...document.querySelectorAll(".stacks td[data-name]")].map(
    one => getComputedStyle(one, "::before").flexShrink
)"""
CRAMPED = """[...document.querySelectorAll(".figure b")].filter(one => {
    one.textContent = "1,234,567,890 min";
    return one.scrollWidth > one.parentElement.clientWidth;
}).length"""
UNREACHED = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [hx-get]:not(form):not([hx-trigger]), [tabindex='0']"
)].filter(one => one.checkVisibility() && !one.disabled).filter(one => {
    one.focus();
    const style = getComputedStyle(one);
    const seen = style.outlineStyle !== "none" || style.boxShadow !== "none";
    return document.activeElement !== one || one.tabIndex < 0 || !seen;
}).map(one => one.outerHTML.slice(0, 80))"""
"""What can be clicked and does not take the focus of the keyboard, or does not show that it has it."""
BLOCKING = """() => performance.getEntriesByType("resource").filter(one => one.renderBlockingStatus === "blocking")
    .map(one => new URL(one.name).pathname.split("/").pop())"""
"""What a page is not painted without."""


@pytest.fixture(scope="module")
def pages(gateway: Door) -> dict[str, tuple[str, ...]]:
    """A path to each kind of page, and what comes there once the page is shown."""
    name, prices = gateway.deployment.name("shown"), gateway.deployment.name("prices")
    gateway.http.post(f"/publish/{name}", params={"ttl_ms": 1}, content="{}").raise_for_status()
    gateway.deployment.letters("shown", 1)
    (bookmark, *_) = gateway.publish("shown", *({"n": n} for n in range(12)))
    due_ms = int(time.time() * 1000) + 3_600_000
    gateway.http.post(f"/publish/{name}", params={"enqueue_at_ms": due_ms}, content="{}").raise_for_status()
    gateway.http.post(f"/publish/{prices}", params={"key": "Z"}, content='{"price": 1}').raise_for_status()
    assert len(gateway.receive("shown", max=3, max_backlog=5)) == 3
    assert gateway.receive("shown", subscription="x", filter="/n > 9")
    return {
        "/": (),
        f"/console/queues/{name}": ("#messages tbody tr", "#subscriptions"),
        f"/console/queues/{name}/message?bookmark={bookmark}": (".life", "#payload"),
        f"/console/letters/{name}": ("article",),
        f"/console/letters/{name}/edit?letter=dlq.{name}:0:0": (),
        f"/console/sow/{prices}": ("#records tr", ".figures"),
    }


@pytest.mark.parametrize("scheme", cases(["light"], long=["dark"]))
def test_pages_fit_a_phone_and_keep_the_rules_of_accessibility(
    gateway: Door, browser: "playwright.Browser", pages: dict[str, tuple[str, ...]], scheme: str
) -> None:
    with view_of(browser, f"phone_{scheme}", color_scheme=scheme) as view:
        wrong: dict[str, list[str]] = {}
        for path, parts in pages.items():
            view.set_viewport_size({"width": 1280, "height": 900})
            view.goto(f"{gateway.address}{path}")
            assert view.evaluate(BLOCKING) == ["console.css"], path
            for part in parts:
                playwright.expect(view.locator(part).first).to_be_visible()
            wrong[path] = axe.faults(view)
            view.keyboard.press("Tab")  # from here on the browser shows where the focus is
            wrong[f"{path} by keyboard"] = view.evaluate(UNREACHED)
            view.set_viewport_size({"width": 360, "height": 740})
            assert view.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            cut = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
            assert view.evaluate(cut) == 0, f"{path}: a table is cut on a phone"
            assert set(view.evaluate(SQUEEZED)) <= {"0"}, f"{path}: a label is broken within a word"
            wrong[f"{path} on a phone"] = axe.faults(view)
            assert view.evaluate(CRAMPED) == 0, f"{path}: a figure is wider than its box"
            assert view.evaluate("document.querySelectorAll('h1').length") == 1
        view.goto(f"{gateway.address}{list(pages)[1]}")
        view.get_by_role("button", name="Follow events").click()
        playwright.expect(view.locator("#messages tbody tr")).to_have_count(13)
        view.get_by_role("button", name="Purge by key and filter").click()
        playwright.expect(view.get_by_role("dialog").locator("#preview")).to_be_visible()
        wrong["a dialog"] = axe.faults(view)
        view.get_by_role("button", name="Leave it").click()
        view.evaluate("scrollTo(0, 0)")
        if scheme == "light":
            view.set_viewport_size({"width": 420, "height": 900})
            shot(view, gateway, "phone")
        else:
            view.set_viewport_size({"width": 1280, "height": 1100})
            shot(view, gateway, "queue-dark")
        ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert {path: found for path, found in wrong.items() if found} == {}
    assert (int(re.findall(r"\d+", ground)[0]) > 128) is (scheme == "light")


def test_the_keyboard_reaches_the_content_first_and_keeps_its_place(gateway: Door, view: "playwright.Page") -> None:
    view.goto(f"{gateway.address}/?find={gateway.deployment.token}")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.textContent") == "To the content"
    name = gateway.deployment.name("orders")
    link = view.get_by_role("row", name=name).get_by_role("link", name=name, exact=True)
    link.focus()
    with view.expect_response(re.compile("/console/live")):
        pass
    link.evaluate("one => one.dataset.old = 1")
    playwright.expect(link).not_to_have_attribute("data-old", "1")  # the figures have gone on
    playwright.expect(link).to_be_focused()


def test_a_queue_that_is_not_there_is_reported_on_a_page(gateway: Door, browser: "playwright.Browser") -> None:
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"{gateway.address}/console/queues/nope")
    assert answer.status == 404
    playwright.expect(page.get_by_role("alert")).to_contain_text("there is no queue 'nope'")
    context.close()


@pytest.fixture(scope="module")
def dialogs(gateway: Door) -> list[tuple[str, str, str, str]]:
    """Each dialog: the page it is on, the buttons that open and confirm it, and what is told then."""
    name, prices = gateway.deployment.name("acted"), gateway.deployment.name("acted-prices")
    gateway.http.post(f"/publish/{name}", params={"ttl_ms": 1}, content="{}").raise_for_status()
    gateway.deployment.letters("acted", 1)
    due = {"enqueue_at_ms": int(time.time() * 1000) + 3_600_000}
    planned = [
        gateway.http.post(f"/publish/{to}", params={**due, **key}, content="{}").json()["bookmark"]
        for to, key in [(name, {}), (name, {}), (prices, {"key": "A"}), (prices, {"key": "B"})]
    ]
    (first, *_) = gateway.publish("acted", {"n": 1}, {"n": 2})
    queue, message = f"/console/queues/{name}", f"/console/queues/{name}/message?bookmark="
    letters, topic = f"/console/letters/{name}", f"/console/sow/{prices}"
    return [
        (queue, "Pause…", "Pause", "Deliveries are stopped"),
        (queue, "Resume…", "Resume", "Deliveries go on"),
        (f"{message}{first}", "Expire it now…", "Expire", "is expired"),
        (f"{message}{planned[0]}", "Cancel it…", "Cancel 1", "1 scheduled message is cancelled"),
        (queue, "Cancel scheduled messages…", "Cancel 1", "1 scheduled message is cancelled"),
        (queue, "Purge by key and filter…", "Purge", "1 message removed"),
        (queue, "Rewind…", "Bring", "came back"),
        (f"{letters}/edit?letter=dlq.{name}:0:0", "Preview…", "Send it back", "Sent back to"),
        (letters, "Send them back…", "Send", "sent back"),
        (topic, f"Cancel {planned[2]}…", "Cancel 1", "1 scheduled update is cancelled"),
        (topic, "Cancel them…", "Cancel 1", "1 scheduled update is cancelled"),
    ]


def press_when_ready(view: "playwright.Page") -> None:
    """Press what has the focus. For 20 ms after a part of the page has come, its buttons do nothing."""
    playwright.expect(view.locator(".htmx-added")).to_have_count(0)
    view.keyboard.press("Enter")


def test_every_dialog_is_opened_left_and_confirmed_by_the_keyboard(
    gateway: Door, view: "playwright.Page", dialogs: list[tuple[str, str, str, str]]
) -> None:
    """The dialog has the name of what it asks, and keeps the focus; later the focus is where it was, or near by."""
    for path, opens, confirms, says in dialogs:
        view.goto(f"{gateway.address}{path}")
        opener = view.get_by_role("button", name=opens, exact=True)
        dialog = view.get_by_role("dialog")
        opener.focus()
        press_when_ready(view)
        playwright.expect(dialog).to_be_visible()
        assert view.evaluate("dialog.contains(document.activeElement)"), f"{opens}: the focus is not in the dialog"
        playwright.expect(dialog).to_have_accessible_name(dialog.get_by_role("heading").inner_text())
        view.keyboard.press("Escape")
        playwright.expect(dialog).not_to_be_visible()
        playwright.expect(opener).to_be_focused()
        press_when_ready(view)
        button = dialog.get_by_role("button", name=re.compile(f"^{confirms}\\b"))
        playwright.expect(button).to_be_visible()
        for _ in range(4):
            if button.evaluate("one => one === document.activeElement"):
                break
            view.keyboard.press("Tab")
        playwright.expect(button).to_be_focused()
        view.keyboard.press("Enter")
        playwright.expect(dialog).not_to_be_visible()
        playwright.expect(view.get_by_role("status").last).to_contain_text(says)
        view.wait_for_load_state("networkidle")
        where = view.evaluate("document.activeElement.outerHTML.slice(0, 60)")
        assert not where.startswith("<body"), f"{opens}: the focus is lost"
