"""A queue whose broker's clock is set back by an hour: nothing leaves early, and nothing waits for the hour (C3)."""

from typing import Any

import pytest

from lapse.core.expression import compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import QueueSettings
from lapse.core.shard.changelog import Items
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from unit.runtime.queue.machine_alone import Letters, Payloads, Record, command, crowded, finish, live

HOUR_MS = 3_600_000


@pytest.mark.feature("C3", "L10", "L11", "Q5")
def test_a_message_lives_as_long_as_it_says_and_a_consumer_that_is_gone_is_missed() -> None:
    one, letters = crowded(0), Letters()
    one.take_over(1_000 + HOUR_MS)
    command(one, 1_000 + HOUR_MS, "subscribe", max_backlog=1, heartbeat_timeout_ms=3_000)
    one.deliver(1_000 + HOUR_MS)
    finish(one)
    one.set_back(2_000)
    one.arrive("orders", 0, [Record(0, 2_000, headers=[("lapse-ttl-ms", b"5000")])])
    one.advance(2_001)
    one.deliver(2_001)
    finish(one)
    assert live(one) == [0]
    (leased,) = one.shard.peek(0, 10)
    assert leased.until_ms == 2_101, "a lease has its length"
    command(one, 4_999, "heartbeat", id="other", subscription="other")
    assert len(list(one.shard.subscriptions())) == 1
    one.advance(5_000)
    finish(one)
    assert not list(one.shard.subscriptions()), "not heard of since the clock was set back"
    one.advance(7_000)
    finish(one, letters)
    assert live(one) == []
    (letter,) = letters.taken
    assert dict(letter.headers)["lapse-expired-at-ms"] == b"7000", "nobody decides in the future (C53)"


def limited(journal: Items, payloads: Payloads, **rates: Rate) -> QueueMachine:
    traits: Any = {"traits": TraitReader(group=compile_value("/f")), "group_limit": 9} if "group_rate" in rates else {}
    settings = QueueSettings(name="orders", expiration=Expiration(enabled=True), **rates, **traits)
    one = QueueMachine(settings, restore(journal), 1, payloads, QueueOutput("orders", 0, 1, "", 1), "orders")
    one.shard.allowance.counts_as_written = False
    return one


@pytest.mark.feature("C3", "C71", "Q25")
@pytest.mark.parametrize("kind", ["rate", "group_rate"])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_rate_that_was_used_up_frees_a_window_later(kind: str, crashes: bool) -> None:
    payloads = Payloads()
    one = limited([], payloads, **{kind: Rate(2, 1_000)})
    journal = list(one.take_over(1_000))
    one.arrive("orders", 0, [Record(at, value=b'{"f": 1}') for at in range(6)])
    command(one, 1_000, "subscribe", max_backlog=10, heartbeat_timeout_ms=2 * HOUR_MS)

    def delivered(at_ms: int) -> int:
        one.deliver(at_ms)
        journal.extend(finish(one).journal)
        return one.shard.depth()["leased"]

    assert delivered(1_000 + HOUR_MS) == 2
    if crashes:
        one = limited(journal, payloads, **{kind: Rate(2, 1_000)})
        one.take_over(5_000)
    else:
        one.set_back(5_000)
    assert delivered(5_000) == 2, "those of the future count as of now"
    assert delivered(5_999) == 2
    assert delivered(6_000) == 4
    assert delivered(6_500) == 4
    assert delivered(7_000) == 6


@pytest.mark.feature("C3", "Q18")
def test_a_temporary_queue_is_idle_when_nobody_has_used_it_since_its_clock_was_set_back() -> None:
    settings = QueueSettings(name="orders", idle_ms=300_000)
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "", 1), "orders")
    one.take_over(1_000 + HOUR_MS)
    assert one.next_due_ms() == 301_000 + HOUR_MS
    one.set_back(5_000)
    assert one.next_due_ms() == 305_000
