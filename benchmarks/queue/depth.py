"""Measures in the core alone the memory per queued message, and the cost of a message when many are queued."""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.plain_record import PlainRecord
from lapse.config import loads
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.runtime.journal.spill_file import SpillFile

_NOW_MS = 1_800_000_000_000
_BATCH = 5_000
_CYCLE = 1_000
_ROUNDS = 7
_A_DAY_MS = 86_400_000


def run(messages: int = 1_000_000, priority: bool = False, cycled: int = 20_000, room: int = 0) -> Figures:
    """Fill a shard, measure its memory, then let messages arrive, be leased and be acknowledged at the same depth.

    Args:
        messages: how many messages are queued, each with a random lifetime between an hour and a day.
        priority: whether the queue has a priority, with random values.
        cycled: how many messages pass through in each round; the median of the rounds counts.
        room: memory for segments, MiB, beyond which they are on disk; 0 = all in memory.
    """
    random.seed(1)
    lifetimes = [[("lapse-ttl-ms", b"%d" % random.randrange(3_600_000, _A_DAY_MS))] for _ in range(10_007)]
    payloads = [b'{"price":%d}' % random.randrange(1000) for _ in range(9_973)]

    def records(first: int, count: int) -> list[PlainRecord]:
        return [
            PlainRecord(offset, _NOW_MS, b"k", payloads[offset % 9_973], lifetimes[offset % 10_007])
            for offset in range(first, first + count)
        ]

    line = 'priority = "/price"\n' if priority else ""
    settings = loads(f'[queue.deep]\nexpiration = "enabled"\n{line}').queue["deep"].settings("deep", 0)
    segments = Segments(SpillFile(Path(tempfile.gettempdir())), room << 20) if room else Segments()
    shard = QueueShard(settings, QueueState(segments))
    for some in (records(0, _BATCH), records(_BATCH, _BATCH)):
        # Load code and allocate arenas before the memory is measured.
        QueueShard(shard.settings).arrive("deep", 0, some, Step())
    gc.collect()
    before = psutil.Process().memory_info().rss
    began = time.process_time()
    for first in range(0, messages, _BATCH):
        shard.arrive("deep", 0, records(first, min(_BATCH, messages - first)), Step())
    filled = time.process_time() - began
    gc.collect()
    weight = psutil.Process().memory_info().rss - before
    costs = list(_costs(shard, messages, cycled, records))
    passed = _ROUNDS * cycled
    return {
        "mib": weight / (1 << 20),
        "passed": passed,
        "needed": -(-passed // SIZE),
        "read": segments.loads,
        "messages": messages,
        "bytes": weight / messages,
        "arrival_us": filled / messages * 1e6,
        "cost_us": statistics.median(costs),
    }


def _costs(shard: QueueShard, depth: int, cycled: int, records: object) -> Iterator[float]:
    """Yield the CPU of arrival, lease and acknowledgment per message in each round, µs."""
    make = records
    assert callable(make)
    shard.subscribing.subscribe("s", "c", _CYCLE, 60_000, "", _NOW_MS, Step())
    at = depth
    for _ in range(_ROUNDS):
        done, spent = 0, 0.0
        while done < cycled:
            some = make(at, _CYCLE)
            began = time.process_time()
            step = Step()
            shard.arrive("deep", 0, some, step)
            shard.deliver(_NOW_MS, step)
            for delivery in step.deliveries:
                for first, last in delivery.messages.ranges():
                    shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("deep", 0, first, last)], _NOW_MS, Step())
            spent += time.process_time() - began
            at += _CYCLE
            done += _CYCLE
        yield spent / done * 1e6


if __name__ == "__main__":
    alone(run)
