"""What was sent to clients and is not safe yet, beside the journal that goes on (C55)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.core.queue.journal.queue_journal import RING
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from lapse.runtime.shard.sent_log import MOST_STEPS


@pytest.mark.feature("C55")
def test_no_step_is_overwritten_in_the_journal_before_its_deliveries_are_safe() -> None:
    """A broker that takes no deliveries for seconds ends the process. The next owner must find them in the journal."""
    assert MOST_STEPS < RING

    async def journaled() -> list[bool]:
        written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        under_way = DeliveriesUnderWay("orders, partition 0", anything, Producer(written), {"deliveries": 5})  # type: ignore[arg-type]
        await under_way.send(7, [Output("deliveries", 0, None, b"", [])], None)
        await under_way.collect(6 + MOST_STEPS)
        waits = asyncio.create_task(under_way.collect(7 + MOST_STEPS))
        await asyncio.sleep(0)
        found = [waits.done()]
        written.set_result(None)
        await waits
        return [*found, waits.done()]

    class Producer:
        def __init__(self, written: asyncio.Future[Any]) -> None:
            self.written = written

        async def send(self, *_: object) -> list[asyncio.Future[Any]]:
            return [self.written]

    anything: Any = SimpleNamespace(delivery_patience_s=5.0, delivery_sendable_s=1.0, kept_answers=None)
    assert asyncio.run(journaled()) == [False, True]
