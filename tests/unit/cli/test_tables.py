"""Tables keep what people need, however narrow the output is."""

import pytest
from rich.table import Table

from lapse.cli.instant import INSTANT
from lapse.cli.tables import print_table
from lapse_client.instant import shown

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
def test_brackets_of_a_payload_are_printed_as_they_are(capsys: Captured) -> None:
    table = Table("value")
    table.add_row("[/b] [red]stop[/red] [queue.orders]")
    print_table(table)
    assert "[/b] [red]stop[/red] [queue.orders]" in capsys.readouterr().out


def test_a_narrow_terminal_gets_several_lines(capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    print_table(table())
    out = capsys.readouterr().out
    assert "…" not in out
    cells = [line.split("│")[1].strip() for line in out.splitlines() if line.count("│") == 5]
    assert "".join(cells) == BOOKMARK


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (None, ""),
        (1_769_860_800_000, "2026-01-31 12:00:00"),
        (1_769_860_800_250, "2026-01-31 12:00:00.250"),
        (1 << 62, f"epoch + {1 << 62} ms"),
    ],
)
def test_an_instant_is_short_and_can_be_read_back(at_ms: int | None, text: str) -> None:
    assert shown(at_ms) == text
    if at_ms is not None and at_ms < 1 << 62:
        assert INSTANT.convert(text, None, None) == at_ms
