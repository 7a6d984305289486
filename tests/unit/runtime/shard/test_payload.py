"""Payloads in memory: whatever is kept, read back and handed out, each offset's own record comes, and nothing stays."""

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.generation import FIRST_REWOUND
from lapse.runtime.shard import payload
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.payload import PayloadWindow, SourceWindow
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from support.suite.at_length import examples

AHEAD = 7


@dataclass(frozen=True)
class Stored:
    """A record of a source."""

    offset: int
    key: bytes | None = b"k"
    value: bytes | None = b"v"

    @property
    def timestamp(self) -> int:
        return 1_000 + self.offset


class Log:
    """A log with holes, which reads some records more than it is asked for."""

    def __init__(self, offsets: list[int]) -> None:
        self.records = [Stored(offset) for offset in offsets]
        self.reads = 0

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[Stored]:
        self.reads += 1
        return [record for record in self.records if first <= record.offset <= last + AHEAD]


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]]]:
    """Offsets of a log, some of them missing, and what happens: so many are consumed, or handed out."""
    holes = draw(st.sets(st.integers(0, 120), max_size=8))
    moves = draw(st.lists(st.tuples(st.sampled_from(["consume", "consume", "hand out"]), st.integers(1, 20))))
    return [offset for offset in range(120) if offset not in holes], moves


@pytest.mark.feature("Q16")
@settings(max_examples=examples(1200), deadline=None)
@pytest.mark.slow
@given(lives(), st.integers(0, 20), st.booleans())
def test_every_offset_gets_its_record_and_what_was_handed_out_does_not_stay(
    life: tuple[list[int], list[tuple[str, int]]], room: int, every_other: bool
) -> None:
    """Where each is handed out once, in order, the window is empty in the end, and counts nothing."""
    offsets, moves = life
    log = Log(offsets)
    window = PayloadWindow(cast("LogReader", log), limit_bytes=room * 120)
    consumed = handed = 0
    for move, count in [*moves, ("consume", 120), *[("hand out", 17)] * 8]:
        if move == "consume":
            window.keep("t", 0, log.records[consumed : consumed + count])
            consumed = min(len(offsets), consumed + count)
            continue
        asked = offsets[handed : min(consumed, handed + count)]
        handed += len(asked)
        # The rest of a portion is asked for on its own, as that of another subscription.
        for some in (asked[::2], asked[1::2]) if every_other else (asked,):
            if some:
                found = asyncio.run(window.get("t", 0, some))
                assert [cast("Any", one).offset for one in found] == some
    assert handed == len(offsets)
    source = window._windows["t", 0]
    if not every_other:
        assert [chunk.left for chunk in source._chunks] == []
    assert source._size == sum(chunk.size for chunk in source._chunks)


@pytest.mark.feature("C40")
def test_what_kafka_has_removed_is_distinguished_from_what_comes_behind_it() -> None:
    log = Log([0, 1, 2, 7, 8, 9])
    window = PayloadWindow(cast("LogReader", log), limit_bytes=0)
    found = asyncio.run(window.get("t", 0, list(range(1, 9))))
    assert [one and one.offset for one in found] == [1, 2, None, None, None, None, 7, 8]


def test_consecutive_offsets_of_several_chunks_are_handed_out_at_once() -> None:
    """With what none of them has in between; a chunk with a hole gives what it has."""
    window = SourceWindow(1 << 20, WorkerBytes())
    records = [Stored(offset) for offset in range(20)]
    window.keep(records[0:4])
    window.keep(records[6:8])
    window.keep([records[8], records[10]])
    found = window.run(2, 12)
    assert [one and one.offset for one in found] == [2, 3, None, None, 6, 7, 8, None, 10, None, None, None]
    assert [(chunk.first, chunk.left) for chunk in window._chunks] == [(0, 2)]
    window.insert(records[0:6])
    assert [one and one.offset for one in window.run(0, 6)] == [0, 1, 2, 3, 4, 5]
    assert window._size == 0


@pytest.mark.feature("Q16", "D4")
@settings(deadline=None)
@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 70), min_size=1), st.sets(st.integers(0, 60), max_size=5))
def test_what_is_handed_out_by_reference_is_counted_as_if_its_payload_had_been_read(
    there: set[int], asked: set[int], cuts: set[int]
) -> None:
    read, passed = SourceWindow(1 << 20, WorkerBytes()), SourceWindow(1 << 20, WorkerBytes())
    begins = [0, *sorted(cuts), 61]
    for first, stop in pairwise(begins):
        for window in (read, passed):
            window.keep([Stored(offset) for offset in sorted(there) if first <= offset < stop])
    for offset in sorted(asked):
        read.get(offset)
    passed.pass_over(np.array(sorted(asked), np.int64))
    assert [(one.first, one.left) for one in passed._chunks] == [(one.first, one.left) for one in read._chunks]
    assert passed._size == read._size


def test_what_nobody_asks_for_makes_room_once_enough_else_was_handed_out() -> None:
    """Messages that expired are never asked for: they may not fill the window for ever."""
    log = Log(list(range(1_000)))
    window = PayloadWindow(cast("LogReader", log), limit_bytes=20_000)
    window.keep("t", 0, log.records[:100])  # they fill it, and expire
    for first in range(100, 900, 100):
        window.keep("t", 0, log.records[first : first + 100])
        found = asyncio.run(window.get("t", 0, list(range(first, first + 100))))
        assert None not in found
    assert log.reads == 3, "read back until what expired has gone, and not since"


@pytest.mark.feature("Q14", "Q16")
def test_what_was_only_looked_at_is_not_read_again_and_is_handed_out_still() -> None:
    log = Log(list(range(100)))
    window = PayloadWindow(cast("LogReader", log), limit_bytes=1 << 20)
    for _ in range(3):
        found = asyncio.run(window.get("t", 0, [*range(0, 60, 2), 90], used=False))
        assert [one.offset for one in found if one] == [*range(0, 60, 2), 90]
    assert log.reads == 1
    found = asyncio.run(window.get("t", 0, list(range(60))))
    assert [one.offset for one in found if one] == list(range(60))
    assert log.reads == 1


def test_what_lies_far_apart_is_not_read_with_all_that_lies_between() -> None:
    log = Log([5, 40_000, 40_001, 90_000])
    window = PayloadWindow(cast("LogReader", log), limit_bytes=1 << 20)
    found = asyncio.run(window.get("t", 0, [5, 40_000, 40_001, 60_000, 90_000], used=False))
    assert [one and one.offset for one in found] == [5, 40_000, 40_001, None, 90_000]
    assert log.reads >= 3


@pytest.mark.feature("X7")
def test_the_shards_of_a_worker_keep_a_limited_amount_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kept up to its own limit, so that hundreds of queues with long backlogs took gigabytes."""
    monkeypatch.setattr(payload, "_LEAST_BYTES", 3_000)
    worker, log = WorkerBytes(100_000), Log(list(range(200)))
    windows = [PayloadWindow(cast("LogReader", log), 20_000, of_worker=worker) for _ in range(50)]
    for first in range(0, 200, 5):
        for window in windows:
            window.keep("t", 0, log.records[first : first + 5])
    assert 100_000 < worker.count < 100_000 + 50 * 5_000
    for window in windows:
        found = asyncio.run(window.get("t", 0, list(range(200)), used=False))
        assert [one and one.offset for one in found] == list(range(200))
    assert worker.count < 100_000 + 50 * 2 * 5_000
    for window in windows:
        assert list(window.release_memory())
    assert worker.count == 0


@pytest.mark.feature("X7")
def test_a_larger_window_that_was_asked_for_counts_whatever_the_limit_of_the_worker() -> None:
    worker, log = WorkerBytes(10_000), Log(list(range(200)))
    window = PayloadWindow(cast("LogReader", log), 40_000, of_worker=worker)
    for first in range(0, 200, 10):
        window.keep("t", 0, log.records[first : first + 10])
    assert worker.count > 40_000


@pytest.mark.feature("Q15", "C40")
def test_the_timestamp_of_a_record_that_is_gone_is_that_of_the_next_one() -> None:
    """It was compacted, and the message is in the queue until it is handed out: its age was not known."""
    window = PayloadWindow(cast("LogReader", Log([5, 6, 7])), 1 << 20)

    def stamp_ms(offset: int, topic: str = "t") -> int | None:
        return asyncio.run(window.timestamp_ms(topic, 0, offset))

    assert [stamp_ms(offset) for offset in (5, 2, FIRST_REWOUND + 2, 8)] == [1_005, 1_005, 1_005, None]
    window.gone = {"deleted"}
    assert stamp_ms(5, "deleted") is None
