"""Tables keep what people need, however narrow the output is."""

import re

import pytest
from click import UsageError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lapse.cli.instant import INSTANT, at_ms
from lapse.tables import _drawn, fitted, print_table
from lapse_client.reading.instant import shown

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
BOOKMARK = "a-topic-with-a-rather-long-name:12:123456789-123456999"


def table() -> Table:
    made = Table("bookmark", "until", "by", "expires")
    made.add_row(BOOKMARK, "2026-01-31T12:00:00.000+00:00", "a-subscription" * 3, "2026-01-31T12:00:00.000+00:00")
    return made


@pytest.mark.feature("Q15")
def test_a_row_is_one_line_where_no_terminal_is(capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_table(table())
    (row,) = [line for line in capsys.readouterr().out.splitlines() if BOOKMARK in line]
    assert row.count("2026-01-31T12:00:00.000+00:00") == 2
    assert "a-subscription" * 3 in row


@pytest.mark.feature("Q15")
def test_a_table_without_rows_says_so_on_a_terminal(capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_table(Table("origin", "value", title="orders"))
    assert re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split() == ["orders", "none"]


@pytest.mark.feature("Q15")
def test_brackets_of_a_payload_are_printed_as_they_are(capsys: Captured) -> None:
    table = Table("value")
    table.add_row("[/b] [red]stop[/red] [queue.orders]")
    print_table(table)
    assert "[/b] [red]stop[/red] [queue.orders]" in capsys.readouterr().out


@pytest.mark.feature("Q15")
@pytest.mark.parametrize("terminal", ["", "1"])
def test_a_colon_in_a_bookmark_or_a_payload_is_printed_as_it_is(
    capsys: Captured, monkeypatch: Patch, terminal: str
) -> None:
    """The one of partition 100 was shown as `orders💯17`."""
    monkeypatch.setenv("FORCE_COLOR", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    table = Table("origin", "value")
    table.add_row("orders:100:17", "at:1234:heart:")
    print_table(table)
    printed = capsys.readouterr().out
    assert "orders:100:17" in printed
    assert "at:1234:heart:" in printed


@pytest.mark.feature("Q15")
@pytest.mark.parametrize("number", range(5))
def test_a_plain_table_is_drawn_as_rich_draws_it(capsys: Captured, monkeypatch: Patch, number: int) -> None:
    """A thousand entities are six thousand rows, which took rich six seconds of CPU."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    table = Table("topic", "what", *(["a title that is wider than its cells"] if number else []))
    table.add_column("bytes", justify="right")
    rows = [("a", "[x] :100: 日本", "1"), ("", " spaces ", "1,000"), ("longer than the title", "é", "")][:number]
    for topic, what, size in rows:
        table.add_row(topic, what, Text("you", style="red"), size)
    console = Console(width=10_000, emoji=False)
    with console.capture() as capture:
        console.print(fitted(table, console), markup=False)
    drawn = _drawn(table)
    assert drawn is not None
    assert drawn == capture.get()
    print_table(table)
    assert capsys.readouterr().out == drawn


@pytest.mark.feature("Q15")
def test_a_cell_that_is_not_printed_as_it_is_is_left_to_rich() -> None:
    for text in ("two\nlines", "a\ttab", "\x1b[31m"):
        table = Table("value")
        table.add_row(text)
        assert _drawn(table) is None


@pytest.mark.feature("X7")
@pytest.mark.parametrize("terminal", ["", "1"])
def test_what_a_terminal_would_act_on_is_printed_as_an_escape(
    capsys: Captured, monkeypatch: Patch, terminal: str
) -> None:
    """A producer's header or payload moves no cursor and sets no title."""
    monkeypatch.setenv("FORCE_COLOR", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    table = Table("entity", "value")
    table.add_row("q\x1b]0;title\x07", Text("\x00\x9b2J \u202eabc", style="red"))
    print_table(table)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert r"q\x1b]0;title\x07" in printed
    assert r"\x00\x9b2J \u202eabc" in printed


INSTANT_TEXT = "2026-01-31 12:00:00.250"
TITLES = (
    "bookmark",
    "state",
    "since (UTC)",
    "until (UTC)",
    "by",
    "expires (UTC)",
    "deliveries",
    "cancels",
    "waits for",
)
ROWS = {
    "available": ("orders:0:17", "available", "", "", "", INSTANT_TEXT, "0", "0", "its group"),
    "leased": ("orders:0:18", "leased", INSTANT_TEXT, INSTANT_TEXT, "a-subscription" * 2, INSTANT_TEXT, "3", "1", ""),
    "ranged": ("orders:0:123456789-123456999", "delayed", INSTANT_TEXT, INSTANT_TEXT, "", "", "1", "0", "a delay"),
}


def on_a_terminal(made: Table, width: int, capsys: Captured, monkeypatch: Patch) -> list[str]:
    """The lines that a terminal of some width shows."""
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    print_table(made)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


@pytest.mark.feature("Q15")
@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("shown_rows", [["available"], ["leased"], ["ranged"], list(ROWS), []], ids="+".join)
def test_no_word_is_broken_however_narrow_the_terminal_is(
    width: int, shown_rows: list[str], capsys: Captured, monkeypatch: Patch
) -> None:
    made = Table(*TITLES, title="orders")
    for name in shown_rows:
        made.add_row(*ROWS[name])
    lines = on_a_terminal(made, width, capsys, monkeypatch)
    assert max(map(len, lines)) <= width
    there = {word for line in lines for word in line.split()}
    said = {word for name in shown_rows for cell in ROWS[name] for word in cell.split()}
    titles = {word for at, title in enumerate(TITLES) for word in title.split() if any(ROWS[n][at] for n in shown_rows)}
    assert said | titles <= there
    assert bool(shown_rows) or "none" in there or set(TITLES[0].split()) <= there


def test_a_row_that_does_not_fit_is_a_block_of_lines(capsys: Captured, monkeypatch: Patch) -> None:
    made = Table(*TITLES, title="orders")
    made.add_row(*ROWS["available"])
    made.add_row(*ROWS["leased"])
    lines = [line.rstrip() for line in on_a_terminal(made, 60, capsys, monkeypatch)]
    assert lines[:3] == ["orders", "bookmark       orders:0:17", "state          available"]
    assert f"until (UTC)    {INSTANT_TEXT}" in lines
    assert lines.count("") == 1, "between the two"


def test_what_is_longer_than_a_line_goes_on_in_the_next_one(capsys: Captured, monkeypatch: Patch) -> None:
    lines = on_a_terminal(table(), 40, capsys, monkeypatch)
    assert "…" not in "".join(lines)
    words = [line.split()[-1] for line in lines]
    assert BOOKMARK in "".join(words)


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (None, ""),
        (1_769_860_800_000, "2026-01-31 12:00:00"),
        (1_769_860_800_250, "2026-01-31 12:00:00.250"),
        (1_089_348_866_261, "2004-07-09 04:54:26.261"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999"),
        (1 << 62, f"epoch + {1 << 62} ms"),
    ],
)
def test_an_instant_is_short_and_can_be_read_back(instant_ms: int | None, text: str) -> None:
    assert shown(instant_ms) == text
    if instant_ms is not None and instant_ms < 1 << 62:
        assert INSTANT.convert(text, None, None) == instant_ms


@pytest.mark.feature("Q22", "D7")
def test_every_millisecond_can_be_written_as_text() -> None:
    """As a float, one instant in 160 is a little less than its millisecond."""
    begin_ms = 1_089_348_866_000
    assert [INSTANT.convert(shown(begin_ms + ms), None, None) for ms in range(1_000)] == [
        begin_ms + ms for ms in range(1_000)
    ]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("text", ["253402300800000", "9" * 20, "9" * 5_000, "9999-12-31T23:59:59-01:00"])
def test_an_instant_later_than_the_calendar_is_none(text: str) -> None:
    """Kafka takes 64 bits, and Python no number of so many digits."""
    with pytest.raises(UsageError, match="expected"):
        INSTANT.convert(text, None, None)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("text", ["1796005591", "1796005591 ", "100000000"])
def test_seconds_since_the_epoch_are_refused(text: str) -> None:
    """As ms they would be in January 1970, before everything, and nobody would notice."""
    with pytest.raises(
        UsageError, match=f"{text.strip()} looks like seconds since the epoch; as ms .*{text.strip()}000"
    ):
        INSTANT.convert(text, None, None)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("text", ["0", "1969-12-31T23:59:59", "25000d"])
def test_an_instant_before_1970_is_before_everything(text: str) -> None:
    """To Kafka a negative instant is a command."""
    assert at_ms(INSTANT.convert(text, None, None), lambda: 1_769_860_800_000) == 0
