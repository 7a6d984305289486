"""One shard of a SOW topic, which processes records, commands and time (S1 to S11).

Only `apply` changes the state, in operation and in recovery. A step's changes are journal records, and the latest
record of every key restores the shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from lapse.core.error_code import Refusal
from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, run_to_end
from lapse.core.record import Record
from lapse.core.shard.activity import Activity
from lapse.core.shard.agreement import Agreement
from lapse.core.sow import journal
from lapse.core.sow.arrival.entrance import Entrance
from lapse.core.sow.command import SowCommands
from lapse.core.sow.removal.deletion import PORTION
from lapse.core.sow.removal.pending_letters import PendingLetters
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.removal.tombstone import Tombstone
from lapse.core.sow.retirement.activity import UsableSowShard
from lapse.core.sow.retirement.retiring import RetirableSowShard
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Removal, RunningDeletion, RunningQuery, Step
from lapse.core.sow.subscriptions.fan_out import SubscriberFanOut
from lapse.core.sow.subscriptions.subscription import Subscription
from lapse.core.sow.updates.record_updates import RecordUpdates

_TOMBSTONES_LOOKED_BEYOND: Final = 16
"""How many tombstones that are not due are skipped to find due ones after them."""


class SowShard:
    """One shard of a SOW topic.

    Args:
        settings: the topic's settings.

    Attributes:
        settings: the topic's settings.
        activity: the last use of a temporary topic (Q18).
        agreement: the shard's part in the agreement on the topic's end (C4).
        commands: carries out commands.
        state: the shard's state, for reading only.
    """

    __slots__ = (
        "_entrance",
        "_fan_out",
        "_pending_letters",
        "_removals",
        "_updates",
        "activity",
        "agreement",
        "commands",
        "settings",
        "state",
    )

    def __init__(self, settings: SowSettings) -> None:
        self.settings = settings
        self.state = SowState(settings)
        self._fan_out = SubscriberFanOut(self.state)
        self._removals = Removals(self.state, self._fan_out)
        self._updates = RecordUpdates(self.state, self._removals, self._fan_out)
        self._entrance = Entrance(self.state, self._updates, self._removals, self._fan_out)
        self._pending_letters = PendingLetters(self.state)
        usable = UsableSowShard(self.state)
        self.activity: Activity[Step] = Activity(settings.idle_ms, settings.configured, usable)
        retirable = RetirableSowShard(self.state, self._updates, self._removals, self.activity)
        self.agreement: Agreement[Step] = Agreement(settings.name, settings.partition, settings.shards, retirable)
        self.commands = SowCommands(self.state, self._updates, self._removals, self.note_use)

    # --- inputs ----------------------------------------------------------------------------------------------

    def arrive(self, topic: str, partition: int, records: Sequence[Record], step: Step, clock_ms: int = NEVER) -> int:
        """See `Entrance.arrive`. The use of the topic counts by the broker's clock, not by producers' timestamps."""
        taken = self._entrance.arrive(topic, partition, records, step, clock_ms)
        if taken:
            self.note_use(clock_ms, step)
        return taken

    def note_use(self, at_ms: int, step: Step) -> None:
        """Note a use of the topic at an instant of the broker's clock; `NEVER` = the latest known one (Q18)."""
        self.activity.note_use(self.state.now_ms if at_ms >= NEVER else at_ms, step, self.agreement)

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Step) -> None:
        """See `Entrance.set_aside`."""
        self._entrance.set_aside(topic, partition, record, why, step)
        self.activity.note_use(self.state.now_ms, step, self.agreement)

    def advance(self, now_ms: int, step: Step, limit: int = 10_000) -> bool:
        """Do what is due: expiry and scheduled versions by instant, then lost subscriptions (C2).

        Args:
            now_ms: the instant, ms since the epoch.
            step: receives changes and outputs.
            limit: about how many records may leave or take effect.

        Returns:
            Whether there is more to do at this instant.
        """
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        if self.agreement.frozen:  # updates that it does not take in could give records new deadlines
            return self._advance_agreement(now_ms, step)
        change_bytes = step.change_bytes
        more = self._do_due(now_ms, step, limit)
        if step.change_bytes > change_bytes:
            self.activity.note_use(now_ms, step, self.agreement)  # before the agreement checks for idleness (C50)
        if more:
            return True
        if state.tombstones:
            self._forget_tombstones(now_ms, step)
        return self._advance_agreement(now_ms, step)

    def _advance_agreement(self, now_ms: int, step: Step) -> bool:
        """Continue the agreement on the end. Return whether there is more to do at this instant."""
        before = self.agreement.frozen
        self.agreement.advance(now_ms, step)
        after = self.agreement.frozen
        return self.agreement.next_due_ms() <= now_ms if after else before

    def _do_due(self, now_ms: int, step: Step, limit: int) -> bool:
        """Do what is due for records and subscriptions. Return whether there is more to do."""
        state = self.state
        while True:
            version = state.schedule.next_due() if state.schedule else None
            version_ms = NEVER if version is None else version[0]
            if self.settings.expiration.enabled:
                journal_keys, more = state.deadlines.due(min(now_ms, version_ms), limit)
                self._removals.expire_all(journal_keys, now_ms, step)
                limit -= len(journal_keys)
                if more:
                    return True
            if version is None or version_ms > now_ms:
                break
            if limit <= 0:
                return True
            self._updates.materialise(version[1], now_ms, step)
            limit -= 1
        for subscription_id, subscriber in list(state.subscribers.items()):
            if subscriber.lost_at_ms <= now_ms:
                self.commands.end_lost(subscription_id, now_ms, step)
            elif subscriber.query is not None and subscriber.query.finished:
                self.commands.note_query_finished(subscriber.query, step)
        return False

    def refuse(self, query: RunningQuery, now_ms: int, step: Step, refusal: Refusal) -> None:
        """End a query that takes too much work, unless it is finished. The answer says why (X7)."""
        if not query.finished:
            self.commands.refuse(query, now_ms, step, refusal)

    def pull(self, query: RunningQuery, now_ms: int, step: Step, scan: int | None = None) -> None:
        """Put a query's next batch into the step. Call this until `query.finished` (C45).

        Args:
            query: one of a step's `queries`.
            now_ms: the instant at which the batch is sent, ms since the epoch.
            step: receives the messages, and at the end the answer.
            scan: how many records to examine; None = the number in the settings.
        """
        if query.finished:
            return
        self.activity.note_use(now_ms, step, self.agreement)
        query.pull(now_ms, step, scan)
        if query.finished:
            self.commands.note_query_finished(query, step)

    def continue_deletion(self, deletion: RunningDeletion, step: Step, portion: int = PORTION) -> None:
        """Do the next part of a deletion. Call this until `deletion.finished`, and give no other command before.

        Args:
            deletion: one of a step's `deletions`.
            step: receives changes and outputs, and at the end the answer.
            portion: how many records to examine.
        """
        deletion.examine_next(step, portion)
        if deletion.finished:
            self._updates.deletion = None
        if deletion.finished and deletion.is_answered:
            step.answers.append(deletion.answer)

    def keep_refused_letters(self, refused: Sequence[tuple[Removal, str]], step: Step) -> list[bytes]:
        """Keep records whose letters the broker refused. Return their keys for `letter_written` (C27)."""
        return self._pending_letters.keep_refused(refused, step)

    def letter_written(self, letter_key: bytes, step: Step) -> None:
        """Drop a pending letter, because it is safe (D3)."""
        self._pending_letters.letter_written(letter_key, step)

    def next_due_ms(self) -> int:
        """Return when `advance` is needed next, or up to a second before, ms since the epoch; `NEVER` = never."""
        state = self.state
        instants = [self.agreement.next_due_ms()]
        if self.agreement.frozen:
            return instants[0]
        instants += [subscriber.lost_at_ms for subscriber in state.subscribers.values()]
        if self.settings.expiration.enabled and (expiry_ms := state.deadlines.next_due_ms()) is not None:
            instants.append(expiry_ms)
        if (version := state.schedule.next_due()) is not None:
            instants.append(version[0])
        if state.tombstones:
            instants.append(self._tombstone_end_ms(next(iter(state.tombstones.values())), self._excess_tombstones()))
        return min(instants)

    def is_due(self, at_ms: int) -> bool:
        """Return whether `advance` has something to do at an instant."""
        return self.next_due_ms() <= at_ms

    def _forget_tombstones(self, now_ms: int, step: Step) -> None:
        # They are in the order of their creation, which is about that of their instants.
        due: list[bytes] = []
        misses, too_many = 0, self._excess_tombstones()
        for journal_key, tombstone in islice(self.state.tombstones.items(), 10_000):
            if self._tombstone_end_ms(tombstone, too_many - len(due)) <= now_ms:
                due.append(journal_key)
            elif (misses := misses + 1) == _TOMBSTONES_LOOKED_BEYOND:
                break
        for journal_key in due:
            self.state.apply_change(step, journal.TOMBSTONE + journal_key[1:], None)

    def _excess_tombstones(self) -> int:
        """Return how many of the oldest tombstones are forgotten before their time (C56)."""
        return 0 if self.state.retains_all_deletes else len(self.state.tombstones) - self.settings.most_tombstones

    def _tombstone_end_ms(self, tombstone: Tombstone, too_many: int) -> int:
        if too_many <= 0:
            return tombstone.until_ms
        dug_at_ms = tombstone.until_ms - self.settings.tombstone_ms
        return min(tombstone.until_ms, dug_at_ms + self.settings.tombstone_least_ms)

    # --- recovery --------------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one journal record. Only this changes the state, in operation and in recovery."""
        self.state.apply(key, value)

    def restore(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Restore a new shard from the journal's latest value of every key. Keys of the runtime are skipped."""
        run_to_end(self.restoring(items))

    def restoring(self, items: Iterable[tuple[bytes, bytes | None]]) -> Portions[None]:
        """Do the same as `restore`, in portions."""
        yield from self.state.restoring(items)
        self.activity.restore()

    def release_memory(self) -> Portions[None]:
        """Free the large parts of the state, in portions: see `Shard`."""
        yield from self.state.release_memory()

    def replace_topic(self, topic: str, epoch: int, now_ms: int, step: Step) -> bool:
        """Treat further records of a topic that was deleted and created again as those of a new topic (C42).

        Records and scheduled versions stay. Bookmarks name only updates of the new topic.
        """
        self.state.replace_sources(topic, step)
        return True

    def take_over(self, now_ms: int, step: Step) -> None:
        """Begin an epoch after `restore`: subscriptions get a full timeout, and unfinished queries begin again (C5).

        Args:
            now_ms: the instant, ms since the epoch.
            step: receives changes and queries.
        """
        self.state.now_ms = max(self.state.now_ms, now_ms)
        self._removals.began_ms = now_ms
        self.agreement.take_over(now_ms)
        self.activity.begin(now_ms, step, self.agreement)
        self.commands.resume(now_ms, step)

    def set_back(self, now_ms: int) -> None:
        """Make instants ahead of the clock count as now, because the broker's clock was set back (C3).

        Otherwise a subscriber that is gone would be missed so much later. Deadlines keep their instants (L9).
        """
        self.state.now_ms = min(self.state.now_ms, now_ms)
        self._removals.began_ms = min(self._removals.began_ms, now_ms)
        self.commands.set_back(now_ms)
        self.activity.set_back(now_ms)
        for subscriber in self.state.subscribers.values():
            subscriber.heard_ms = min(subscriber.heard_ms, now_ms)

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions of clients."""
        return [subscriber.subscription for subscriber in self.state.subscribers.values()]

    def unsubscribe(self, subscription_id: str, now_ms: int, step: Step, detail: str) -> None:
        """End a subscription because of its user (X4) or its filter (X7). `detail` says why."""
        self.commands.end(subscription_id, now_ms, step, detail)
