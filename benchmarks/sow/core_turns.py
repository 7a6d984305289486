"""Measures in the core alone how long a SOW shard with many records works without a pause."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import psutil

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.load import order
from benchmarks.instruments.plain_record import PlainRecord
from lapse.core.expression import grammar
from lapse.core.lifetime import Expiration
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step
from lapse.protocol.command import Command

_NOW_MS = 1_800_000_000_000
_AT_ONCE = 500


def run(messages: int = 100_000) -> Figures:
    """Update every record twice, query with and without an order, delete a tenth, let all expire; longest turns, ms.

    Then schedule as many updates, list half of them by filter, and withdraw those.

    Also measure the memory of a record beyond its key and payload.

    Args:
        messages: the number of records, all due within one second.
    """
    gc.disable()  # in a worker it runs rarely
    grammar()  # a worker loads it at its start
    shard = SowShard(SowSettings(name="turns", expiration=Expiration(True)))
    lifetimes = [[("lapse-expires-at-ms", b"%d" % (_NOW_MS + 60_000 + ms))] for ms in range(1000)]
    longest: dict[str, float] = {"update": 0.0, "query": 0.0, "order": 0.0, "deletion": 0.0, "expiry": 0.0}
    longest |= {"scheduling": 0.0, "listing": 0.0, "withdrawal": 0.0}

    def turn(what: str, do: Callable[[], object]) -> object:
        began = time.thread_time()
        done = do()
        longest[what] = max(longest[what], time.thread_time() - began)
        return done

    payloads = sum(len(order(at)) + len(b"k%d" % at) for at in range(0, messages, 1_000)) / (messages / 1_000)
    process = psutil.Process()
    weight = process.memory_info().rss
    for offset in range(0, 2 * messages, _AT_ONCE):
        if offset == messages:
            weight = process.memory_info().rss - weight
        records = [
            PlainRecord(at, _NOW_MS, b"k%d" % (at % messages), order(at % messages), lifetimes[at % 1000])
            for at in range(offset, offset + _AT_ONCE)
        ]
        turn("update", lambda records=records: shard.arrive("turns", 0, records, Step()))
    for what, order_by in (("query", None), ("order", "/price DESC")):
        step = Step()
        command = Command(command="sow", id="q", filter="/price >= 500", order_by=order_by)
        turn(what, lambda command=command, step=step: shard.commands.handle(command, _NOW_MS, step))
        (query,) = step.queries
        while not query.finished:
            turn(what, lambda query=query: shard.pull(query, _NOW_MS, Step()))
    step = Step()
    delete = Command(command="sow_delete", id="d", filter="/price >= 900")
    turn("deletion", lambda: shard.commands.handle(delete, _NOW_MS, step, None))
    for deletion in step.deletions:
        while not deletion.finished:
            turn("deletion", lambda deletion=deletion: shard.continue_deletion(deletion, Step()))
    more: object = True
    while more:
        more = turn("expiry", lambda: shard.advance(_NOW_MS + 61_000, Step(), _AT_ONCE))
    _schedule(shard, messages, turn)
    return {
        "messages": messages,
        "bytes": weight / messages - payloads,
        **{f"{what}_ms": seconds * 1000 for what, seconds in longest.items()},
    }


def _schedule(shard: SowShard, messages: int, turn: Callable[[str, Callable[[], object]], object]) -> None:
    """Schedule updates, list some of them by filter, and withdraw half of them."""
    now_ms = _NOW_MS + 62_000
    for offset in range(0, messages, _AT_ONCE):
        records = [
            PlainRecord(
                2 * messages + at,
                now_ms,
                b"k%d" % at,
                order(at),
                [("lapse-enqueue-at-ms", b"%d" % (now_ms + 90_000 + at))],
            )
            for at in range(offset, offset + _AT_ONCE)
        ]
        turn("scheduling", lambda records=records: shard.arrive("turns", 0, records, Step()))
    step = Step()
    asked = {"id": "s", "state": "scheduled", "filter": "/price >= 500"}
    turn("listing", lambda: shard.commands.handle(Command(command="sow", **asked), now_ms, step))
    for listing in step.queries:
        while not listing.finished:
            turn("listing", lambda listing=listing: shard.pull(listing, now_ms, Step()))
    step = Step()
    turn("withdrawal", lambda: shard.commands.handle(Command(command="sow_delete", **asked), now_ms, step))
    for withdrawal in step.deletions:
        while not withdrawal.finished:
            turn("withdrawal", lambda withdrawal=withdrawal: shard.continue_deletion(withdrawal, Step()))


if __name__ == "__main__":
    alone(run)
