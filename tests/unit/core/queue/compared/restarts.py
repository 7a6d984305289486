"""Commits, crashes and take-overs of a shard, and owners that write on after they have lost it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable

from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from unit.core.queue.compared.compared_shard import ComparedShard
from unit.core.queue.compared.dump import dump
from unit.core.queue.compared.shown import all_gone, rows
from unit.core.queue.expected.message import Bookmark, Gone


class Restarts(ComparedShard):
    """Makes steps durable, and loses what is not."""

    def commit(self) -> None:
        """Make the open step durable, in one batch."""
        if self.step is not None:
            self.log.append(self.epoch, self.journal.encode(self.step))
            assert not self.shard.state.dropped, "a leak"
            self._clear()
            self.durably_released, self.oracle.released = self.oracle.released, []
            self.step = None
            self.committed = pickle.dumps(self.oracle, pickle.HIGHEST_PROTOCOL)
            self.committed_dump = dump(self.shard.state)

    def crash(
        self,
        settings: QueueSettings | None = None,
        torn: Iterable[int] = (),
        stall: bool = False,
        compact: bool = False,
    ) -> None:
        """Lose what is not durable, and take the shard over, perhaps after others who did not get to the end of it."""
        self.did["take_over"] += 1
        if stall:
            self.stalled = (self.epoch, self.shard, self.journal, self.step)
        old_enough = self._old_enough()
        for cut in torn:
            _, journal = self._restored()
            items = journal.begin()
            self.log.append(self.epoch, items[: cut % (len(items) + 1)])
            if compact:
                self.log.compact(old_enough, False)
        state, self.journal = self._restored()
        assert dump(state) == self.committed_dump, "the restored state is not the one that was durable"
        self.log.append(self.epoch, self.journal.begin())
        self.settings = settings or self.settings
        self.shard = QueueShard(self.settings, state)
        self.oracle = pickle.loads(self.committed)
        for subscriber in self.oracle.subscribers.values():
            # Not durable: a take-over counts anew, unless the clock was set back behind what is (C5).
            subscriber.last_seen_ms = state.subscriptions[subscriber.id].last_seen_ms
        self.oracle.settings = self.settings
        for subscriber in self.oracle.subscribers.values():
            # When a subscription was heard of is not durable, and the clock may have been set back since.
            subscriber.last_seen_ms = state.subscriptions[subscriber.id].last_seen_ms
        self._begin_topics()
        self.forgotten |= {b for b, message in self.oracle.messages.items() if message.state == "expired"}
        self.step = None
        self._know_sources()
        self._repeat_barriers()
        self._both(lambda step: self.shard.take_over(self.now_ms, step), lambda: self.oracle.take_over(self.now_ms))
        self.commit()

    def _restored(self) -> tuple[QueueState, QueueJournal]:
        self.epoch += 1
        self.log.claim(self.epoch)
        restored = restore(self.log.latest().items(), self._segments())
        self.released = restored.released
        assert not restored.state.as_of, "of recovery only"
        return restored.state, QueueJournal(restored.state, self.epoch, restored)

    def _repeat_barriers(self) -> None:
        """Send once more what the last durable step released, because it may not have been sent (C35)."""
        step = Step()
        for change in self.released:
            self.shard.repeat_barrier(change, step)
        sent = [(one.subscription, bookmark) for one in step.deliveries for bookmark, *_ in rows(one.messages)]
        assert all(one.barrier and one.until_ms == 0 for one in step.deliveries)
        assert sent == [
            (name, bookmark)
            for bookmark, names in self.durably_released
            for name in names
            if name in self.oracle.subscribers
        ]

    def _reopen(self) -> None:
        """A crash in the middle of what the oracle does in one go: the shard alone is taken over."""
        state, self.journal = self._restored()
        self.log.append(self.epoch, self.journal.begin())
        self.shard = QueueShard(self.settings, state)
        self._begin_topics()
        step = self._open()
        self.shard.take_over(self.now_ms, step)
        self.commit()

    def _begin_topics(self) -> None:
        for topic, epoch in self.oracle.since.items():
            self.shard.note_topic_epoch(topic, 0, epoch)

    def replace(self, topic: str, crashes: Iterable[bool] = ()) -> None:
        """Delete a topic and create it again; the shard is taken over, and perhaps again before it is done."""
        self.topics[topic, 0] = []
        self.lost = {bookmark for bookmark in self.lost if bookmark[0] != topic}
        self.crash()
        for bookmark in [one for one in self.oracle.pending if one[0] == topic]:
            self.letter_written(bookmark)
        done, gone = False, Counter[Gone]()
        falls = iter(crashes)
        while not done:
            step = self._open()
            done = self.shard.replace_topic(topic, self.epoch, self.now_ms, step)
            gone.update(all_gone(step, self._heard))
            if next(falls, False) and not done:
                self.commit()
                self._reopen()
            else:
                step.removals.clear()
        self.oracle.replaced(topic, self.epoch, self.now_ms)
        assert gone == Counter(self.oracle.removals)
        self.did.update(reason for one in gone for reason in one.reasons)
        self.oracle.removals = []
        self.forgotten = {bookmark for bookmark in self.forgotten if bookmark[0] != topic}
        self.check()
        self.commit()

    def letter_written(self, bookmark: Bookmark) -> None:
        """The letter of a dying message is safe at last."""
        refusing, self.refusing = self.refusing, 0
        number = self.shard.state.sources.number(*bookmark[:2])
        self._both(
            lambda step: self.shard.letter_written((number, bookmark[2]), step),
            lambda: self.oracle.letter_written(bookmark),
        )
        self.refusing = refusing

    def zombie(self, by_ms: int, leave_all: bool) -> None:
        """Wake a stalled owner up. It writes on, because it does not know that its epoch is over."""
        if self.stalled is None:
            return
        epoch, shard, journal, step = self.stalled
        self.stalled = (epoch, shard, journal, None)
        if step is None:
            self.log.append(epoch, journal.maintain())
            step = Step()
        shard.advance(self.now_ms + by_ms, step)
        shard.deliver(self.now_ms + by_ms, step)
        if leave_all:
            shard.purge(self.now_ms, step, leased=True)
        self.log.append(epoch, journal.encode(step))

    def compact(self, tombstones_too: bool) -> None:
        """Compact the changelog, as far as `min.compaction.lag.ms` lets the broker."""
        self.log.compact(self._old_enough(), tombstones_too)

    def _old_enough(self) -> int:
        """Return up to which offset all is old. An epoch that has not rewritten inherited segments keeps the rest."""
        oldest = min((int.from_bytes(key[1:9]) for key in self.journal._whole_at.values()), default=self.epoch)
        return min((at for epoch, at in self.log.claims.items() if epoch > oldest), default=self.log.end)
