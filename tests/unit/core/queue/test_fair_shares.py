"""Groups share a queue fairly, whatever their backlogs (Q25)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from benchmarks.instruments.plain_record import PlainRecord

from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step

NOW_MS = 1_800_000_000_000
GREAT, OTHERS, EACH, TIMES = "great", 200, 15, 100
STEP_MS, SERVED_AT_ONCE, STEPS, WINDOW_STEPS = 100, 20, 120, 100
"""200 messages a second are served, for 12 s, of which any 10 s are looked at."""


@pytest.mark.slow
@pytest.mark.feature("Q25", "C71")
@pytest.mark.parametrize("limit", [10, 1_000])
def test_jains_index_is_at_least_095_over_any_10_s_beside_a_tenant_with_100_times_the_backlog(limit: int) -> None:
    tenants = [GREAT] * (TIMES * EACH) + [f"tenant-{number}" for number in range(OTHERS)] * EACH
    random.Random(1).shuffle(tenants)
    served = [Counter(some) for some in _served(tenants, limit, visit_at=STEPS)]
    for begin in range(STEPS - WINDOW_STEPS + 1):
        window = sum(served[begin : begin + WINDOW_STEPS], Counter[str]())
        counts = [window[tenant] for tenant in set(tenants)]
        assert sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)) >= 0.95


@pytest.mark.feature("Q25", "C71")
def test_a_tenant_without_a_backlog_is_served_next_beside_one_with_a_large_one() -> None:
    served = _served([GREAT] * 2_000, limit=1_000, visit_at=7)
    assert [at for at, some in enumerate(served) if "visitor" in some] == [8]


def _served(tenants: list[str], limit: int, visit_at: int) -> list[list[str]]:
    """Return the tenants of the messages settled in each step; the only message of a visitor comes in one of them."""
    settings = QueueSettings(
        name="q", traits=TraitReader(group=lambda view: view.headers["tenant"].decode()), group_limit=limit
    )
    shard = QueueShard(settings, QueueState())
    shard.subscribing.subscribe("s", "c", SERVED_AT_ONCE, 1_000_000, "", NOW_MS, Step())
    coming = [*tenants, "visitor"]
    records = [PlainRecord(at, NOW_MS, b"k", b"{}", [("tenant", of.encode())]) for at, of in enumerate(coming)]
    shard.arrive("q", 0, records[:-1], Step(), NOW_MS)
    found: list[list[str]] = []
    held: list[int] = []
    for at in range(STEPS):
        now_ms = NOW_MS + at * STEP_MS
        done, held = held, []
        shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("q", 0, one, one) for one in done], now_ms, Step())
        found.append([coming[one] for one in done])
        if at == visit_at:
            shard.arrive("q", 0, records[-1:], Step(), now_ms)
        step = Step()
        while shard.deliver(now_ms, step):
            pass
        held += [one for delivery in step.deliveries for one in delivery.messages.offsets.tolist()]
    return found
