"""Measures in the core alone what the options of a queue cost a message that is drained at full speed, beside none."""

from __future__ import annotations

import cProfile
import gc
import pstats
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.plain_record import PlainRecord
from lapse.config import loads
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.core.record import Record
from lapse.protocol.bookmark import runs
from lapse.protocol.command import Command
from lapse.runtime.kafka.batch_rows import rows_of

_NOW_MS: Final = 1_800_000_000_000
_STEP_MESSAGES: Final = 10_000
_BACKLOG: Final = 20_000
_SETTLED_AT_ONCE: Final = 2_000
_STEP_MS: Final = 20

OPTIONS: Final = {
    "plain": "",
    "groups": 'group_by = "/tenant"',
    "limit": 'group_by = "/tenant"\ngroup_limit = 1000',
    "weight": 'group_by = "/tenant"\ngroup_limit = 1000\ngroup_weight = { t1 = 4, t2 = 2 }',
    "rate": 'rate = "1000000/1s"',
    "group_rate": 'group_by = "/tenant"\ngroup_limit = 1000\ngroup_rate = "1000000/1s"',
    "all": 'group_by = "/tenant"\ngroup_limit = 1000\ngroup_weight = { t1 = 4, t2 = 2 }\n'
    'rate = "1000000/1s"\ngroup_rate = "1000000/1s"',
    "priority": 'priority = "/price"',
    "filter": "",
}
"""By name: lines of the queue's table. The rates permit more than is delivered: only counting them is measured."""


def run(
    options: str = "",
    groups: int = 200,
    messages: int = 150_000,
    rounds: int = 3,
    order: str = "random",
    columns: bool = True,
    profile: str = "",
    consumers: int = 1,
) -> Figures:
    """Let messages arrive, be leased and be acknowledged. Return CPU per message, µs, the least of some rounds.

    Args:
        options: the names of the options, with commas; empty = all.
        groups: the number of groups.
        messages: the number of messages.
        rounds: the number of rounds; the options take turns.
        order: `random` groups, groups in `turn`, or groups in `blocks`.
        columns: whether the records are in columns, as a worker fetches them.
        profile: the option to print a profile of; empty = none.
        consumers: the number of subscriptions that share the backlog.
    """
    gc.disable()
    names = options.split(",") if options else list(OPTIONS)
    made = _records(groups, messages, order)
    parts = [made[at : at + _STEP_MESSAGES] for at in range(0, messages, _STEP_MESSAGES)]
    records = [_fetched(part) if columns else part for part in parts]
    figures: Figures = {}
    for _ in range(rounds):
        for name in names:
            for part, spent in _drain(name, records, consumers).items():
                key = f"{name}_{part}"
                figures[key] = min(figures.get(key, 1e9), spent)
            gc.collect()
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        _drain(profile, records, consumers)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
    return {key: round(value, 2) for key, value in figures.items()}


def _records(groups: int, messages: int, order: str) -> list[PlainRecord]:
    chance = random.Random(1)
    made = []
    for at in range(messages):
        group = (
            chance.randrange(groups)
            if order == "random"
            else at % groups
            if order == "turn"
            else at * groups // messages
        )
        value = b'{"tenant":"t%d","price":%d,"note":"%s"}' % (group, at * 7919 % 1000, b"x" * 150)
        made.append(PlainRecord(at, _NOW_MS, b"k", value, [("lapse-ttl-ms", b"3600000")]))
    return made


def _fetched(records: Sequence[PlainRecord]) -> Sequence[Record]:
    """Return records in columns, as a worker fetches them."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, 0, 0, 1 << 30)
    for at, record in enumerate(records):
        builder.append(at, record.timestamp, record.key, record.value, record.headers)
    data = builder.build()
    data[:8] = records[0].offset.to_bytes(8, "big")
    whole = bytes(data)
    batch = MemoryRecords(whole).next_batch()
    rows = rows_of(whole, 0, len(whole), batch)
    assert rows is not None
    return rows


def _drain(name: str, records: Sequence[Sequence[Record]], consumers: int = 1) -> Figures:
    """Drain a queue, step by step as a worker does; the consumer settles what the step before handed out.

    Args:
        name: the queue's options.
        records: the records of each step.
        consumers: the number of subscriptions.
    """
    text = f'[queue.q]\nexpiration = "enabled"\nlease_period = "60s"\n{OPTIONS[name]}\n'
    shard = QueueShard(loads(text).queue["q"].settings("q", 0), QueueState())
    shard.allowance.counts_as_written = True
    for number in range(consumers):
        text = "/price >= 0" if name == "filter" else ""
        shard.subscribing.subscribe(f"s{number}", "c", _BACKLOG // consumers, 3_600_000, text, _NOW_MS, Step())
    commands, journal = QueueCommands(shard, "q"), QueueJournal(shard.state, 1)
    spent = {"arrive": 0.0, "deliver": 0.0, "settle": 0.0, "journal": 0.0}
    now_ms, settled, steps, written = _NOW_MS, 0, 0, 0
    count = sum(map(len, records))
    coming = iter(records)
    held: deque[tuple[int, Command]] = deque()

    def time_of(part: str, since: float) -> float:
        now = time.process_time()
        spent[part] += now - since
        return now

    while settled < count:
        step, batch = Step(), next(coming, None)
        at = time.process_time()
        if batch is not None:
            shard.arrive("q", 0, batch, step, now_ms)
        at = time_of("arrive", at)
        while held:
            named, command = held.popleft()
            while commands.carry_out_part(command, now_ms, step, None):
                pass
            commands.handle(command, now_ms, step, None)
            settled += named
        at = time_of("settle", at)
        shard.deliver(now_ms, step)
        at = time_of("deliver", at)
        written += sum(len(value or b"") for _, value in [*journal.maintain(), *journal.encode(step)])
        time_of("journal", at)
        now_ms += _STEP_MS
        shard.allowance.note_written(shard.allowance.counted_to, now_ms)
        for delivery in step.deliveries:
            offsets = sorted(delivery.messages.offsets.tolist())
            for first in range(0, len(offsets), _SETTLED_AT_ONCE):
                held.append(_acknowledgment(delivery.subscription, offsets[first : first + _SETTLED_AT_ONCE]))
        steps += 1
        if steps > 20 * count:
            raise RuntimeError("no end")
    parts = {part: seconds / count * 1e6 for part, seconds in spent.items()}
    return {"us": sum(parts.values()), **parts, "steps": steps, "journal_bytes": written / count}


def _acknowledgment(holder: str, offsets: list[int]) -> tuple[int, Command]:
    """Return how many messages a command settles, and the command, as a subscriber sends it."""
    named = (f"q:0:{first}-{last}#1" if last > first else f"q:0:{first}#1" for first, last in runs(offsets))
    return len(offsets), Command(command="acknowledge", subscription=holder, bookmarks=tuple(named), answer="errors")


if __name__ == "__main__":
    alone(run)
