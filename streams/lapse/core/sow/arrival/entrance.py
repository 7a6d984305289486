"""Entrance: takes records of the underlying topics into a SOW shard (S2, S3, C1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core.lifetime import NEVER, NO_TIMESTAMP
from lapse.core.reason import Reason
from lapse.core.record import Record
from lapse.core.repeats import Batch, id_of, name_of
from lapse.core.rows import Rows
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.sow.arrival.arrival import MEANT, Refused, check_size, is_redriven_elsewhere, parse_update
from lapse.core.sow.arrival.header_cache import HeaderCache
from lapse.core.sow.arrival.origin import is_replicated
from lapse.core.sow.arrival.plain_updates import PlainUpdates
from lapse.core.sow.journal import RECORD
from lapse.core.sow.records.record import HEAD, HEAD_BYTES
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import EventRecord, Step
from lapse.core.sow.subscriptions.fan_out import SubscriberFanOut
from lapse.core.sow.updates.record_updates import RecordUpdates
from lapse.protocol.bookmark import Bookmark

_PASSED_AT_ONCE: Final = 128
"""How many records are taken one by one before the next ones are checked for plain updates again."""


class Entrance:
    """Takes in records of the underlying topics.

    Args:
        state: the shard's state.
        updates: applies updates to records.
        removals: removes records.
        fan_out: makes messages to the shard's subscribers.
    """

    __slots__ = ("_fan_out", "_header_cache", "_ids", "_plain_updates", "_removals", "_settings", "_state", "_updates")

    def __init__(self, state: SowState, updates: RecordUpdates, removals: Removals, fan_out: SubscriberFanOut) -> None:
        self._state = state
        self._settings = state.settings
        self._updates = updates
        self._removals = removals
        self._fan_out = fan_out
        self._header_cache = HeaderCache(state.settings.expiration)
        self._plain_updates = PlainUpdates(state, self._header_cache)
        self._ids = Batch(state.repeats, -1, 0)

    def arrive(self, topic: str, partition: int, records: Sequence[Record], step: Step, clock_ms: int = NEVER) -> int:
        """Take in records of one underlying partition, in order, each as of its own timestamp (C1).

        Args:
            topic: the underlying topic.
            partition: its partition.
            records: the next records of its log.
            step: receives changes and outputs.
            clock_ms: the broker's clock, ms since the epoch. A record with a later timestamp arrives as of it (L5,
                L10). If updates of a key may be on several partitions, later timestamps are reduced to it (C88).
                `NEVER` = no timestamp is later.

        Returns:
            How many were taken. If the step's changes exceed `max_step_bytes`, this is fewer than given. Then write the
            step, and call this again with the rest and a new step.
        """
        state = self._state
        settings = self._settings
        source = state.source(topic, partition, step)
        self._ids = Batch(state.repeats, source, settings.dedup_window_ms)
        if self._allows_plain_runs and isinstance(records, Rows) and state.takes_many:
            taken = self._take_runs(topic, partition, source, records, step, clock_ms)
        else:
            taken = self._take_singly(topic, partition, source, records, step, clock_ms)
        if settings.dedup_window_ms and taken:
            newest_ms = max(records[taken - 1].timestamp, self._ids.newest_ms)
            reached_ms = state.repeats.reach(source, newest_ms, clock_ms)
            if self._ids.fresh or state.repeats.chunks:
                state.remember_ids(self._ids, source, reached_ms, settings.dedup_window_ms, step)
        return taken

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Step) -> None:
        """Make a dead letter of a record that must not be processed. The state is not changed (X7)."""
        self._state.source(topic, partition, step)
        if self._settings.home.reports_faults_of(partition):
            at_ms = self._state.now_ms if record.timestamp == NO_TIMESTAMP else record.timestamp
            self._removals.refuse(record, topic, partition, Refused(Reason.UNDECODABLE, why), at_ms, step)

    @property
    def _allows_plain_runs(self) -> bool:
        """Whether all updates of a key are on one partition that no other shard reads."""
        return not self._settings.several and not self._settings.home.shared

    def _take_runs(self, topic: str, partition: int, source: int, rows: Rows, step: Step, clock_ms: int) -> int:
        """Take records, with runs of plain updates together. Return how many were taken."""
        taken = 0
        while taken < len(rows):
            left = rows[taken:]
            taken += self._plain_updates.take(left, source, step, clock_ms) or self._take_singly(
                topic, partition, source, left[:_PASSED_AT_ONCE], step, clock_ms
            )
            if step.change_bytes >= self._settings.max_step_bytes:
                break
        return taken

    def _take_singly(
        self, topic: str, partition: int, source: int, records: Sequence[Record], step: Step, clock_ms: int
    ) -> int:
        """Take records one after the other. Return how many were taken."""
        state, settings, plain = self._state, self._settings, self._allows_plain_runs
        acted_on, max_bytes = settings.expiration.enabled, settings.max_step_bytes
        small_bytes = settings.max_record_bytes // 4
        entries, tombstones, subscribers = state.entries, state.tombstones, state.subscribers
        scheduled, pack, unpack = state.schedule.by_key, HEAD.pack, HEAD.unpack_from
        stamp_ms, headers, plain_update = -2, None, None
        taken = 0
        for taken, record in enumerate(records, 1):  # noqa: B007  # the last one is returned
            if record.timestamp != stamp_ms or record.headers != headers:
                # Neighbouring records often have the same timestamp and headers, so their meaning is kept.
                stamp_ms, headers = record.timestamp, record.headers
                if stamp_ms > state.now_ms:
                    state.now_ms = max(state.now_ms, min(stamp_ms, clock_ms))
                plain_update = self._plain_update(stamp_ms, headers) if plain else None
            key, value = record.key, record.value
            if plain_update is not None and value is not None and key is not None:
                # A faster form of `RecordUpdates.take_in`: see `test_the_plain_way_does_what_the_long_one_does`.
                block, deadline_ms = plain_update
                block_bytes = len(block)
                journal_key = RECORD + key
                old = entries.get(journal_key)
                if old is None:
                    simple, old_deadline_ms = True, NEVER
                else:
                    old_deadline_ms, old_stamp_ms, _, _, old_source, size = unpack(old)
                    simple = (
                        old_stamp_ms <= stamp_ms
                        and (old_deadline_ms > stamp_ms or not acted_on)
                        and old_source == source
                        and not (
                            size and (size != block_bytes or not old.startswith(block, HEAD_BYTES))
                            # Headers equal to the update's are known not to be a replicated record's.
                            and is_replicated(old, size)
                        )
                    )  # fmt: skip
                if (
                    simple
                    and len(value) < small_bytes
                    and block_bytes + len(key) < small_bytes
                    and journal_key not in tombstones
                    and key not in scheduled
                ):
                    sequence = state.sequence + 1
                    head = pack(deadline_ms, stamp_ms, sequence, record.offset, source, block_bytes)
                    fresh = head + block + value if block else head + value
                    state.put(journal_key, fresh, deadline_ms, old_deadline_ms, sequence, old is None, step)
                    if subscribers:
                        self._fan_out.send_update(journal_key, old, fresh, step)
                    if step.change_bytes >= max_bytes:
                        break
                    continue
            self._take(topic, partition, source, record, step, clock_ms)
            if step.change_bytes >= max_bytes:
                break
        return taken

    def _plain_update(self, stamp_ms: int, headers: Sequence[tuple[str, bytes | None]]) -> tuple[bytes, int] | None:
        """Return what a plain update's headers say; None of another update.

        Returns:
            The packed headers, and the deadline, ms since the epoch or `NEVER`.
        """
        header_cache = self._header_cache
        header_facts = header_cache.meaning_of(headers) if headers else header_cache.none
        if header_facts is None or stamp_ms < 0:
            return None
        block, deadline_ms, relative_ms = header_facts
        if stamp_ms + relative_ms >= NEVER:  # a deadline beyond 64 bits is a fault, which the slow path reports
            return None
        if relative_ms >= 0 and stamp_ms + relative_ms < deadline_ms:
            deadline_ms = stamp_ms + relative_ms
        if self._settings.expiration.enabled and deadline_ms <= stamp_ms:
            return None
        return block, deadline_ms

    def _take(self, topic: str, partition: int, source: int, record: Record, step: Step, clock_ms: int = NEVER) -> None:
        if any(name in MEANT for name, _ in record.headers) and is_redriven_elsewhere(record, self._settings.name):
            return
        stamp_ms = self._state.now_ms if record.timestamp == NO_TIMESTAMP else record.timestamp
        at_ms = min(stamp_ms, clock_ms)
        home = self._settings.home
        message_id = self._id_of(record)
        if message_id is not None and self._ids.is_repeat(message_id, stamp_ms):
            if home.reports_faults_of(partition):
                bookmark = Bookmark(topic, partition, record.offset)
                step.events.append(ShardEvent(EventKind.REPEATED, at_ms, EventRecord(bookmark, record.key)))
            return
        try:
            check_size(record, self._settings.max_record_bytes)
            update = parse_update(record, source, at_ms, self._settings)
        except Refused as refused:
            if home.reports_faults_of(partition):
                self._removals.refuse(record, topic, partition, refused, at_ms, step)
            return
        if home.holds(update.key):
            if self._settings.several and update.timestamp_ms > clock_ms and update.origin is None:
                update = update._replace(timestamp_ms=clock_ms)
            try:
                self._updates.take_in(update, step)
            except Refused as refused:
                self._removals.refuse(record, topic, partition, refused, at_ms, step)
                return
        # Every shard that reads a record remembers its id, so that all shards find the same repeats (C46).
        if message_id is not None and (update.deadline_ms > at_ms or not self._settings.expiration.enabled):
            self._ids.occupy(message_id, stamp_ms)

    def _id_of(self, record: Record) -> str | None:
        """Return the message id of a record in the form that is kept; None without one, or without deduplication."""
        if not self._settings.dedup_window_ms:
            return None
        raw = id_of(record.headers)
        return None if raw is None else name_of(raw)
