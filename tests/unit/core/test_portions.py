"""A shard that remembers very much is taken over, and let go, in portions: others have their turns in between (C90)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.portions import PORTION, Portions, clear_in_portions, in_lots, run_to_end
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore, restoring
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from unit.core.queue.expected.message import Published
from unit.core.sow.make import T, shard_of

COUNT = 5_000
QUEUE = QueueSettings(name="orders", expiration=Expiration(enabled=True))


def portions_of(work: Portions[Any]) -> tuple[int, Any]:
    """How many portions some work has, and its result."""
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return count, done.value
        count += 1


class Asked:
    """Items that note how many of them were asked for."""

    def __init__(self, items: list[Any]) -> None:
        self.count = 0
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self.count += 1
            yield item


def scheduled_queue() -> tuple[QueueShard, dict[bytes, bytes]]:
    state = QueueState()
    shard, journal = QueueShard(QUEUE, state), QueueJournal(state, 1)
    items = journal.begin()
    later = [("lapse-enqueue-at-ms", b"%d" % (T + 60_000))]
    step = Step()
    shard.arrive("orders", 0, [Published(offset, T, later) for offset in range(COUNT)], step, T)
    items += journal.encode(step)
    return shard, {key: value for key, value in items if value is not None}


@pytest.mark.feature("C90")
def test_a_queue_is_taken_over_a_few_records_at_a_time() -> None:
    shard, log = scheduled_queue()
    asked = Asked(list(log.items()))
    work, before = restoring(asked), 0
    for _ in range(COUNT // PORTION):
        next(work)
        assert asked.count - before <= PORTION
        before = asked.count
    restored = run_to_end(work)
    assert dict(restored.state.scheduled.items()) == dict(shard.state.scheduled.items())
    assert QueueShard(QUEUE, restored.state).next_due_ms() == shard.next_due_ms() == T + 60_000


@pytest.mark.feature("C90")
def test_what_an_epoch_begins_with_is_made_a_few_records_at_a_time() -> None:
    _, log = scheduled_queue()
    restored = restore(log.items())
    count, items = portions_of(QueueJournal(restored.state, 2, restored).beginning())
    assert count >= COUNT // PORTION
    again = restore((key, value) for key, value in items if value is not None)
    assert dict(again.state.scheduled.items()) == dict(restored.state.scheduled.items())
    assert {key for key, value in items if value is None} == log.keys()


@pytest.mark.slow
@pytest.mark.feature("C90", "S11")
@pytest.mark.parametrize("hash_index", [(), ("/n",)])
def test_a_sow_topic_is_taken_over_a_few_records_at_a_time(hash_index: tuple[str, ...]) -> None:
    from unit.core.sow.make import Desk

    desk = Desk(shard_of(hash_index=hash_index))
    for number in range(COUNT):
        desk.put(f"k{number}", {"n": number % 7}, 0, ttl=60_000)
    again = shard_of(hash_index=hash_index)
    count, _ = portions_of(again.restoring(desk.journal.items()))
    assert count >= 2 * COUNT // 1_024 + (COUNT // 64 if hash_index else 0)
    assert again.state.entries == desk.shard.state.entries
    assert again.next_due_ms() == desk.shard.next_due_ms()
    desk.shard = again
    assert len(desk.select(1, filter="/n = 3")) == len(range(3, COUNT, 7))


@pytest.mark.feature("C90")
def test_what_is_given_up_is_let_go_a_little_at_a_time() -> None:
    shard, _ = scheduled_queue()
    count, _ = portions_of(shard.release_memory())
    assert count >= COUNT // PORTION
    assert not shard.state.scheduled
    sow = shard_of()
    sow.state.entries.update({b"r%d" % number: b"" for number in range(COUNT)})
    count, _ = portions_of(sow.release_memory())
    assert count >= COUNT // PORTION
    assert not sow.state.entries


def test_lots_and_what_is_emptied_come_to_their_end() -> None:
    assert list(in_lots(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_lots([])) == []
    one, other = list(range(PORTION + 1)), dict.fromkeys(range(3))
    assert portions_of(clear_in_portions(one, other)) == (3, None)
    assert (one, other) == ([], {})
