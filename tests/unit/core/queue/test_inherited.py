"""What a new shard takes over from the journal of an older one (C81)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.core.queue.journal.inherited import Inherited, inherit, inherited
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, Result, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.core.repeats import Chunk
from unit.core.queue.compared.written import published

SETTINGS = QueueSettings(name="orders", target_depth=1, dedup_window_ms=1_000)


def journal_of(shard: QueueShard, *steps: Step, epoch: int = 1) -> dict[bytes, bytes]:
    """The records that a shard leaves whose steps are these."""
    journal, latest = QueueJournal(shard.state, epoch), dict[bytes, bytes]()
    for items in (journal.begin(), *(journal.encode(step) for step in steps)):
        for key, value in items:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
    return latest


def older_shard(step: Step) -> QueueShard:
    """A paused shard of partitions 0 and 1, of which it has read one message each; later ones are acknowledged."""
    shard = QueueShard(SETTINGS)
    for partition in (0, 1):
        shard.arrive("orders", partition, [published(4, timestamp=50, message_id=b"a")], step, 50, 1)
        shard.state.sources[partition].end_offset = 9
        if not partition:
            shard.settle(SettleAction.ACKNOWLEDGE, "me", [Claim("orders", 0, 4, 4)], 50, step)
        shard.settle(SettleAction.ACKNOWLEDGE, "me", [Claim("orders", partition, 6, 7)], 50, step)
    shard.pause(50, step)
    return shard


@pytest.mark.feature("C81", "C21", "Q13", "X6")
def test_a_new_shard_knows_what_was_promised_of_the_messages_that_it_reads() -> None:
    step = Step()
    shard = older_shard(step)
    found = inherited(journal_of(shard, step).items(), {("orders", 1): 5})
    chunk = Chunk(1, 50, (("a", 50),))
    assert found == Inherited(True, {("orders", 1): {6, 7}}, {("orders", 1): [chunk]})
    state = QueueState()
    inherit(state, found)
    assert (state.paused, state.remembered) == (True, {(0, 6), (0, 7)})
    assert [*state.repeats.chunks.values()] == [replace_source(chunk, 0)]
    again = inherited(journal_of(QueueShard(SETTINGS, state), epoch=2).items(), {("orders", 1): 0})
    assert again == replace(found, chunks={("orders", 1): [replace_source(chunk, 0)]}), "its own journal has it, too"


@pytest.mark.feature("C81")
def test_of_two_epochs_the_one_with_steps_counts_and_an_empty_journal_says_nothing() -> None:
    step = Step()
    shard = older_shard(step)
    old = journal_of(shard, step)
    after = Step()
    shard.resume(60, after)
    assert not inherited({**old, **journal_of(shard, after, epoch=2)}.items(), {}).paused
    assert inherited([], {("orders", 1): 5}) == Inherited()


@pytest.mark.feature("C81", "C16")
def test_a_shard_does_not_know_what_an_older_one_has_read() -> None:
    step, shard = Step(), QueueShard(replace(SETTINGS, target_depth=None))
    source = shard.state.sources[shard.state.sources.number("orders", 1)]
    source.next_offset = source.first_offset = 5
    shard.arrive("orders", 1, [published(5, timestamp=50)], step, 50)
    shard.settle(SettleAction.ACKNOWLEDGE, "me", [Claim("orders", 1, 5, 5)], 50, step)
    for action in (SettleAction.ACKNOWLEDGE, SettleAction.CANCEL):
        outcomes = shard.settle(action, "me", [Claim("orders", 1, 3, 6)], 50, step)
        assert [(one.first, one.last, one.result) for one in outcomes] == [
            (3, 4, Result.UNKNOWN),
            (5, 5, Result.ALREADY_SETTLED),
            (6, 6, Result.UNKNOWN),
        ]
    accepted = shard.transfer_target.accept("t", [Claim("orders", 1, 3, 5)], 50, step)
    assert [one.result for one in accepted] == [Result.UNKNOWN, Result.ALREADY_SETTLED]


def replace_source(chunk: Chunk, source: int) -> Chunk:
    return chunk._replace(source=source)
