"""What a shard passed over is told only where Kafka has removed it (C80)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faust.types import TP

from lapse.runtime.shard import unread_ranges as module
from lapse.runtime.shard.unread_ranges import Gap, Gaps

ORDERS, RISK = TP("orders", 0), TP("risk", 0)


class Log:
    """Says where logs begin."""

    def __init__(self, begins: dict[TP, int]) -> None:
        self.begins_at = begins
        self.asked: list[set[TP]] = []

    async def begins(self, tps: set[TP]) -> dict[TP, int]:
        self.asked.append(set(tps))
        return {tp: self.begins_at[tp] for tp in tps}


@pytest.mark.feature("C80", "C41")
def test_only_what_the_log_begins_behind_was_removed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    log: Any = Log({ORDERS: 8, RISK: 3})

    async def scenario() -> None:
        news = asyncio.Event()
        gaps = Gaps("q", log, news.set, [Gap(RISK, 0, 1)])
        # The third one is a transaction's marker.
        gaps.note([Gap(ORDERS, 2, 3), Gap(ORDERS, 5, 9), Gap(RISK, 5, 5), Gap(RISK, 0, 1)])
        async with asyncio.timeout(10):
            await news.wait()
        assert gaps.take() == {RISK: [(0, 1)], ORDERS: [(2, 3), (5, 7)]}
        assert not gaps
        gaps.note([Gap(RISK, 9, 9)])
        async with asyncio.timeout(10):
            while len(log.asked) < 2:  # noqa: ASYNC110  # the log is a stand-in, and tells nobody
                await asyncio.sleep(0.01)
        assert gaps.take() == {}
        gaps.stop()

    asyncio.run(scenario())
    assert log.asked == [{ORDERS, RISK}, {RISK}]
    assert "Kafka has removed orders:0 up to offset 7, which was read up to 4 only" in caplog.text
