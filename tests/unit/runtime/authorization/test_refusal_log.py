"""Refusals in the log: bounded in number and length for each user, and counted (X7)."""

import asyncio
import logging

import pytest

from lapse.runtime.authorization import refusal_log
from lapse.runtime.authorization.refusal_log import RefusalLog


@pytest.mark.feature("X7")
def test_each_user_has_ten_lines_a_minute_and_then_a_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(refusal_log.time, "monotonic", lambda: now_s)
    caplog.set_level(logging.WARNING)
    one = RefusalLog("orders, partition 0")
    for offset in range(3_000):
        one.log("mallory", offset, "x" * 100_000)
    one.log("alice", 3_000, "field filtr: unknown")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 11
    assert all(len(line) < 700 for line in lines)
    assert "further ones are only counted" in lines[9]
    assert lines[10] == "orders, partition 0, offset 3000: command of 'alice' refused: field filtr: unknown"
    caplog.clear()
    now_s += 61
    one.sum_up()
    one.log("mallory", 4_000, "again")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "orders, partition 0: 2990 more commands of 'mallory' were refused within 61 s",
        "orders, partition 0, offset 4000: command of 'mallory' refused: again",
    ]


@pytest.mark.feature("X7")
def test_the_count_is_reported_although_nothing_happens_after_the_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusal_log, "_PERIOD_S", 0.05)
    one = RefusalLog("orders, partition 0")

    async def flooded() -> None:
        events = asyncio.Event()

        def look(text: str, *values: object) -> None:
            if "20 more commands of 'mallory'" in text % values:
                events.set()

        monkeypatch.setattr(refusal_log.logger, "warning", look)
        for offset in range(30):
            one.log("mallory", offset, "no")
        async with asyncio.timeout(10):
            await events.wait()

    asyncio.run(flooded())


@pytest.mark.feature("X7")
def test_any_number_of_names_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    one = RefusalLog("orders, partition 0")
    for number in range(5_000):
        one.log(f"user{number}", number, "no")
    assert len(caplog.records) == 1_000 + 10
