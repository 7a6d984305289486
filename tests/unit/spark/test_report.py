import json
import math
from datetime import UTC, datetime
from html.parser import HTMLParser

import orjson
import pytest
from rich.console import Console

from lapse import tables
from lapse_spark import chart
from lapse_spark.report import Report


class Page(HTMLParser):
    """Checks that tags nest, and keeps what a reader or a screen reader gets."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def page():
    made = Report("Flights <2013>", subtitle="a & b", made_at=datetime(2026, 3, 1, tzinfo=UTC))
    made.figure("published", 336_776)
    made.figure("ledger", "balanced", state="good")
    made.section("When", "First.\n\nSecond.")
    made.bars(["00:00", "01:00"], {"time_limit": [3, 4], "<b>": [1, 0]}, title="By hour", unit="letters")
    made.lines(["a", "b", "c"], {"EWR": [1, math.nan, 2.5]}, title="By day")
    made.heat(["EWR"], ["0", "1"], [[1, math.nan]], title="Heat")
    made.section("Where")
    made.table(["carrier", "letters", "at"], [["UA", 4321, None], ["<i>", 0.5, True]], title="By carrier")
    return made


def test_page_is_one_well_formed_file_without_a_network(page):
    html = page.html()
    read = Page(html)
    assert "http" not in html.replace("https", "http").split("</style>")[1]
    assert "336,776" in read.text
    assert "Flights <2013>" in read.text
    assert "<i>" in read.text
    assert not [tag for tag, _ in read.seen if tag in ("script", "link", "img", "i") and tag != "i"]


def test_charts_can_be_read_without_seeing_them(page):
    read = Page(page.html())
    assert [facts["aria-label"] for tag, facts in read.seen if tag == "svg"] == ["By hour", "By day", "Heat"]
    assert "time_limit, 01:00: 4 letters" in read.text


def test_page_as_json_and_on_a_terminal(page):
    data = json.loads(orjson.dumps(page.as_json(), option=orjson.OPT_SERIALIZE_NUMPY))
    assert data["parts"][3]["series"]["time_limit"] == [3, 4]
    console = Console(record=True, width=100)
    page.show(console)
    shown = console.export_text()
    assert "336,776" in shown
    assert "UA" in shown


def test_what_a_terminal_would_act_on_is_printed_as_an_escape():
    """A key of somebody's producer sets no title, and a bracket is a bracket."""
    made = Report("Letters")
    made.table(["key", "value"], [["k\x1b]0;title\x07", "[red]x\u202e"]], title="t")
    console = Console(record=True, width=100, emoji=False)
    made.show(console)
    shown = console.export_text()
    assert r"k\x1b]0;title\x07" in shown
    assert r"[red]x\u202e" in shown


@pytest.mark.parametrize("width", [45, 80])
def test_no_value_is_cut_however_narrow_the_terminal(width):
    """Reasons, bookmarks and instants are what a reader goes on with."""
    made, row = (
        Report("Letters"),
        ["a-rather-long-queue", "max_deliveries", "2026-01-31 12:00:00", "orders:0:123456789"],
    )
    made.table(["entity", "reasons", "first_died_at", "bookmark", "refused"], [[*row, None]], title="t")
    console = Console(record=True, width=width)
    made.show(console)
    shown = console.export_text()
    assert [word for cell in row for word in cell.split() if word not in shown] == []


def test_a_file_gets_each_row_as_one_line(capsys, monkeypatch):
    """Cron writes to a file, and `grep` looks for a bookmark in it."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    made, cells = Report("Letters"), [f"{'long' * 10}{number}" for number in range(6)]
    made.table([f"column {number}" for number in range(6)], [cells], title="t")
    made.show(tables.console())
    assert sum(all(cell in line for cell in cells) for line in capsys.readouterr().out.splitlines()) == 1


def test_page_is_written_whole(page, tmp_path):
    file = page.write(tmp_path / "new" / "report.html")
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert [child.name for child in file.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("most", [0, 0.003, 1, 7, 99, 100, 1_234_567])
def test_axes_end_above_the_highest_value_with_few_lines(most):
    scale = chart._Scale(most)
    assert scale.top >= most
    assert 1 <= round(scale.top / scale.step) <= 10


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 values for 2 labels"):
        chart.bars(["a", "b"], {"x": [1, 2, 3]}, title="t")
    with pytest.raises(ValueError, match="do not fit"):
        chart.heat(["a"], ["b"], [[1, 2]], title="t")


def test_numbers_for_people():
    assert [chart.short(value) for value in (0, 336_776, 12_345_678, 0.059, math.nan)] == [
        "0",
        "336,776",
        "12.3 M",
        "0.059",
        "–",
    ]


@pytest.mark.parametrize("many", [3, 32, 33, 400])
def test_every_bar_has_its_name_and_value(many):
    made = Report("Bars")
    names = [f"bar {number}" for number in range(many)]
    made.bars(names, {"a": [1_000 + number for number in range(many)], "b": [0] * many}, title="Many", unit="letters")
    read = Page(made.html().replace("<td></td>", ""))
    shown = read.text.split("Many")[-1] if many <= 32 else read.text.split(f"All {many} values")[-1]
    assert [name for name in names if name not in shown] == []
    assert [value for value in range(1_000, 1_000 + many) if f"{value:,}" not in shown] == []


def test_an_empty_table_says_so_and_columns_are_named_in_words():
    made = Report("Tables")
    made.table(["entity", "median_ms", "window_start"], [], title="Lateness")
    read = Page(made.html())
    assert "none" in read.text
    assert "entitymedian, msfrom (UTC)" in read.text
    assert [facts["colspan"] for tag, facts in read.seen if "colspan" in facts] == ["3"]
    console = Console(record=True, width=100)
    made.show(console)
    assert "Lateness: none" in console.export_text()
    made.table(["first_died_at"], [["x"]], title="t")
    assert [facts["data-name"] for tag, facts in Page(made.html()).seen if "data-name" in facts] == [
        "first death (UTC)"
    ]
    assert made.as_json()["parts"][0]["columns"] == ["entity", "median_ms", "window_start"]
