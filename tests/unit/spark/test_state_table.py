"""The table of `lapse spark state` (D7)."""

import io

import pytest
from pyspark.sql import Row
from rich.console import Console

from lapse_spark.instant import state

AT_MS = 1_769_860_800_250


@pytest.mark.feature("D7")
def test_instants_are_shown_as_people_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the tables of `lapse sow query` and `lapse queue peek`. JSON has ms."""
    out = io.StringIO()
    monkeypatch.setattr(state, "console", lambda: Console(file=out, width=150))
    row = Row(key=b"k", value=b"1769860800250", expires_at_ms=AT_MS, updated_at_ms=None, partition=0, offset=7)
    found = state._Found("records", None, ("key",), state._record, 4, "")
    state._show("prices", AT_MS, 1, found, [row], None)
    text = out.getvalue()
    assert "prices at 2026-01-31 12:00:00.250" in text
    assert "1 records; times in UTC" in text
    assert text.count("2026-01-31 12:00:00.250") == 2
    assert text.count("1769860800250") == 1, "the value is not an instant"
    assert "1,769" not in text
    assert "partition" not in text
