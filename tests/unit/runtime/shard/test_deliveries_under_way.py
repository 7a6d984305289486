"""What was sent to clients and is not safe yet, beside the journal that goes on (C55)."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from lapse.core.queue.journal.queue_journal import RING
from lapse.runtime.kafka.output import Output
from lapse.runtime.kafka.record_batch import Leased
from lapse.runtime.shard import deliveries_under_way as module
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from lapse.runtime.shard.sent_log import MOST_STEPS, PROGRESS_KEY, SentLog


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

    anything: Any = SimpleNamespace(delivery_patience_s=5.0, delivery_sendable_s=1.0)
    assert asyncio.run(journaled()) == [False, True]


@pytest.mark.feature("L10", "Q16")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_watch_goes_on_if_it_looks_within_half_a_millisecond_of_the_end(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop then makes a handle without an instant, as for a call that is due at once."""

    async def watched() -> None:
        ended = asyncio.Event()
        monkeypatch.setattr(module, "end_process", lambda why: ended.set())
        anything: Any = SimpleNamespace(delivery_patience_s=0.000_4)
        under_way = DeliveriesUnderWay("orders, partition 0", anything, anything, {})
        under_way._leased.append((time.monotonic(), asyncio.get_running_loop().create_future()))
        under_way._watch()
        async with asyncio.timeout(10):
            await ended.wait()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(watched())


@pytest.mark.feature("C55", "Q9")
def test_a_new_owner_looks_for_what_was_too_late_to_be_sent_until_a_journal_says_that_it_was_taken_back() -> None:
    """It finds there, too, what was sent of the same step. So no delivery is taken back that somebody saw."""

    async def noted() -> list[tuple[int, int]]:
        log, loop = SentLog({"deliveries": 5}), asyncio.get_running_loop()
        found: list[tuple[int, int]] = []

        def note(step: int) -> None:
            logged = log.progress(step)[PROGRESS_KEY]
            found.append((logged["step"], logged["from"]["deliveries"]))

        for step, offset in ((7, 10), (8, 20), (9, 30)):
            sent: asyncio.Future[Any] = loop.create_future()
            sent.set_result(SimpleNamespace(topic="deliveries", offset=offset))
            log.add(step, [sent])
            leased = [Leased(0.0, None, "deliveries") for _ in range(2)]
            log.under_lease.add(step, leased)
            leased[0].note_sent()
            if step != 8:
                leased[1].note_sent()
            await log.first()
            note(step + 1)
        (late,) = log.under_lease.take_late(1.0, 11)
        assert late.is_left_out
        assert not log.under_lease.take_late(1.0, 11)
        note(10)
        note(11)
        log.add(12, [sent])
        await log.first()
        note(13)
        return found

    assert asyncio.run(noted()) == [(8, 10), (8, 10), (8, 10), (8, 10), (11, 10), (13, 30)]
