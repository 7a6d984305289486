"""Timestamps that Spark has collected, on a machine whose zone is not UTC."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from lapse_spark.option import print_json
from lapse_spark.report import Report

NOON = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """Noon in UTC, as Spark hands it out in New York."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield datetime.fromtimestamp(NOON.timestamp())  # noqa: DTZ006
    monkeypatch.undo()
    time.tzset()


def test_json_has_instants_in_utc_and_says_so(collected: datetime, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": collected, "made": NOON, "day": date(2026, 7, 1)})
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-07-01T12:00:00Z",
        "made": "2026-07-01T12:00:00Z",
        "day": "2026-07-01",
    }


def test_a_report_shows_them_in_utc(collected: datetime) -> None:
    page = Report("Letters", made_at=NOON)
    page.table(["window"], [[collected]], title="Windows")
    assert "2026-07-01 12:00:00" in page.html()
