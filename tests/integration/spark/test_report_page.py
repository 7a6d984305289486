"""The page of `lapse spark report` in a real browser: on a narrow screen nothing of it is cut off or too small (D5)."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lapse_spark.report import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.feature("D5")

LONG = "orders-of-the-shop-in-the-north-" * 3
LEAST_PX = 9
OUTSIDE = """() => [...document.querySelectorAll("body *")]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll"))
    .map(one => one.outerHTML.slice(0, 80))"""
CUT = """() => [...document.querySelectorAll("svg text")].filter(one => {
        const text = one.getBoundingClientRect(), chart = one.closest("svg").getBoundingClientRect();
        return text.left < chart.left - 1 || text.right > chart.right + 1 || text.bottom > chart.bottom + 1;
    }).map(one => one.textContent)"""
SMALLEST = """() => Math.min(...[...document.querySelectorAll("td, th, p, span, figcaption, svg text")].map(one => {
        const svg = one.closest("svg:not(.lying)");
        const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
        return parseFloat(getComputedStyle(one).fontSize) * scale;
    }))"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything that pages have: much of it, little of it, and with long names."""
    page = Report(f"Letters of {LONG}", subtitle="since yesterday")
    page.figure("letters", 1_234_567)
    page.figure("ledger", "NOT balanced", state="bad")
    for many in (1, 32, 33, 400):
        page.section(f"{many} bars")
        labels = [f"2026-01-{number % 31 + 1:02} {number % 24:02}:00 of {number}" for number in range(many)]
        series = {"time_limit": [1_000 * number for number in range(many)], "max_deliveries": [5] * many}
        page.bars(labels, series, title="Letters by hour", unit="letters")
    page.lines([f"day {number}" for number in range(300)], {"EWR": list(range(300))}, title="By day")
    page.heat([f"queue {number}" for number in range(20)], ["0", "1"], [[1, 2]] * 20, title="Heat")
    page.section("Tables")
    page.table(["entity", "median_ms"], [], title="Empty")
    row = [
        LONG,
        12,
        "a sentence that says what is wrong with it " * 4,
        ["time_limit", "max_deliveries"],
        f"{LONG}:0:17",
    ]
    page.table(["entity", "median_ms", "last_message", "reasons", "bookmark"], [row] * 2, title="Wide")
    return page.write(tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_can_be_read(browser: "Browser", file: Path, width: int) -> None:
    view = browser.new_page(viewport={"width": width, "height": 900})
    view.goto(file.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") == width
    assert view.evaluate(OUTSIDE) == []
    assert view.evaluate(CUT) == []
    assert view.evaluate(SMALLEST) >= LEAST_PX
    assert view.get_by_text("none", exact=True).is_visible()
    assert view.locator("svg.lying").nth(1).locator("text").count() == 2 * 32, "each bar has its name and its value"
    view.get_by_text("All 400 values").click()
    assert view.get_by_role("cell", name="399,000", exact=True).is_visible()
    view.close()
