"""Which deliveries must not be sent when it is late, and how late that is (L10)."""

import asyncio
import json
import math
import time
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings, Semantics
from lapse.runtime.kafka.output import Output
from lapse.runtime.queue.delivery_writer import patience_s, sendable_s
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from support.suite.event_loop import finished
from unit.runtime.queue.machine_alone import Letters, Payloads, Record


@pytest.mark.feature("L10", "Q5")
@given(st.integers(1, 10**10))
def test_no_delivery_is_sent_once_its_lease_is_over_however_short_that_is(lease_ms: int) -> None:
    assert 0 < sendable_s(lease_ms) < lease_ms / 1_000
    assert 5 <= patience_s(lease_ms) <= 30, "a hiccup of the broker ends no worker"


class Log(Payloads):
    def note_unread_payloads(self, *_: object) -> None:
        """No payload is read here."""


@pytest.mark.feature("L10", "C35", "C79")
@pytest.mark.parametrize("payload", ["inline", "packed", "reference"])
@pytest.mark.parametrize(
    ("semantics", "barrier", "leased"),
    [
        (Semantics.AT_LEAST_ONCE, False, {0}),
        (Semantics.AT_LEAST_ONCE, True, set()),
        (Semantics.AT_MOST_ONCE, False, set()),
    ],
    ids=["leased", "barrier", "at-most-once"],
)
def test_only_a_delivery_under_a_lease_is_not_sent_late(
    payload: str, semantics: Semantics, barrier: bool, leased: set[int]
) -> None:
    """A lost barrier would not come again, and neither would a message that is delivered at most once."""
    traits = TraitReader(barrier=lambda _: barrier)
    settings = QueueSettings(name="orders", lease_ms=100, semantics=semantics, traits=traits)
    output = QueueOutput("orders", 0, 1, "dlq.orders", 1)
    one = QueueMachine(settings, restore([]), 1, Log(), output, "orders")
    one.take_over(1_000)
    asked = {"id": "s", "command": "subscribe", "subscription": "me", "max_backlog": 5, "payload": payload}
    one.command(Record(timestamp=1_000, value=json.dumps(asked).encode()))
    one.arrive("orders", 0, [Record(0)])
    one.deliver(1_001)
    effects = finished(one.finish(Letters()))
    assert len(effects.after) == 2, "a delivery and an answer"
    assert effects.leased == leased
    assert one.delivery_sendable_s == 0.09


@pytest.mark.feature("L10", "C55")
def test_a_new_owner_sends_no_delivery_of_the_former_one_whose_lease_is_nearly_over() -> None:
    """It read the log of deliveries before that, for as long as that took."""
    now_ms, sent = 1_000_000, list[tuple[bytes | None, float]]()

    class Producer:
        async def send(
            self, outputs: list[Output], leased: Collection[int] = (), until_s: float = math.inf, *_: object
        ) -> list[asyncio.Future[None]]:
            sent.extend((one.value, until_s if at in leased else math.inf) for at, one in enumerate(outputs))
            return []

    class Machine:
        delivery_sendable_s = sendable_s(1_000)

    def row(value: bytes) -> Output:
        return Output("deliveries", 0, None, value, [])

    begun = time.monotonic()
    anything: Any = Machine()
    under_way = DeliveriesUnderWay("orders, partition 0", anything, Producer(), {})  # type: ignore[arg-type]
    found = [(row(b"over"), now_ms), (row(b"barrier"), 0), (row(b"a"), now_ms + 60_000), (row(b"b"), now_ms + 60_000)]
    asyncio.run(under_way.write(found, [row(b"answer")], now_ms))
    left_s = dict(sent)
    assert list(left_s) == [b"over", b"barrier", b"a", b"b", b"answer"]
    assert left_s[b"over"] < time.monotonic()
    assert begun + 59.9 <= left_s[b"a"] == left_s[b"b"] <= time.monotonic() + 59.9
    assert left_s[b"barrier"] == left_s[b"answer"] == math.inf
