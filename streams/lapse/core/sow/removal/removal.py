"""Removals: records leave by deadline, delete or fault, with events and letters (S3, S4, L12, L14).

Every method makes changes with `SowState.apply_change`, which applies them, and puts the outputs into the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason, in_order
from lapse.core.record import Record
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.sow import journal
from lapse.core.sow.arrival.arrival import Refused, Update, key_of_refused
from lapse.core.sow.arrival.origin import LogPosition, bookmark_of, is_replicated, path_of, position_of
from lapse.core.sow.records.record import (
    HEAD,
    Facts,
    Headers,
    deadline_of,
    facts_of,
    headers_of,
    next_instant,
    own_key_of,
    payload_of,
    published_ms,
    publishers_headers,
    unpack_headers,
)
from lapse.core.sow.removal.tombstone import NO_SOURCE, Tombstone
from lapse.core.sow.state import SowState
from lapse.core.sow.step import (
    EventRecord,
    ExpiryBatch,
    OutOfFocus,
    OutOfFocusBatch,
    Removal,
    SowEvent,
    StateDelete,
    Step,
)
from lapse.core.sow.subscriptions.fan_out import SubscriberFanOut
from lapse.core.sow.updates.version import Version
from lapse.protocol.bookmark import Bookmark

_TIME_LIMIT: Final = (Reason.TIME_LIMIT,)


class Removals:
    """Removes the records of one shard.

    Args:
        state: the shard's state.
        fan_out: makes messages to the shard's subscribers.

    Attributes:
        began_ms: start of the owner's epoch, ms since 1970; no decision is dated before it.
    """

    __slots__ = ("_fan_out", "_reports_alone", "_settings", "_state", "began_ms")

    def __init__(self, state: SowState, fan_out: SubscriberFanOut) -> None:
        self._state = state
        self._settings = state.settings
        self._fan_out = fan_out
        self.began_ms = 0
        lettered = Reason.TIME_LIMIT in self._settings.dead_letter_reasons
        self._reports_alone = not (lettered or self._settings.keeps_copies)

    @property
    def retains(self) -> bool:
        """Whether expired keys get tombstones, as deleted ones do, because older updates may arrive late.

        That can happen only if updates of a key are on several partitions, or come from other deployments, too.
        """
        return self._settings.several or self._state.retains_all_deletes

    def expire(self, journal_key: bytes, entry: bytes, now_ms: int, step: Step) -> None:
        """Remove a record whose deadline has passed: a delete with the reason `time_limit` (S4)."""
        facts = facts_of(entry)
        removal = _end_of(entry, unwritten=journal_key in step.changes)
        self._remove(journal_key, entry, removal, step)
        if self.retains:
            path = removal.path
            position = position_of(removal.bookmark) if path else None
            self._retain(
                journal_key, published_ms(entry, facts), facts.offset, facts.source, now_ms, step, path,
                removal.timestamp_ms, position,
            )  # fmt: skip
        self._record_removal(journal_key, entry, now_ms, step)

    def expire_all(self, journal_keys: Sequence[bytes], now_ms: int, step: Step) -> None:
        """Do the same as `expire` for many records, faster if only events are written."""
        state = self._state
        entries, state_deletes = state.entries, step.state_deletes
        subscribers = state.subscribers.values()
        if (
            self.retains
            or not self._reports_alone
            or any(one.query is not None or one.select is not None for one in subscribers)
        ):
            for journal_key in journal_keys:
                self.expire(journal_key, entries[journal_key], now_ms, step)
            return
        unpack = HEAD.unpack_from
        gone: list[tuple[bytes, int, int, int]] = []
        left: list[tuple[bytes, bytes]] = []
        alike: dict[tuple[int, bool], StateDelete] = {}
        changes = step.changes
        oldest = state.sequence
        for journal_key in journal_keys:
            entry = entries[journal_key]
            deadline_ms, timestamp_ms, sequence, offset, source, size = unpack(entry)
            key = journal_key[1:]
            unwritten = journal_key in changes
            if size and is_replicated(entry, size):
                headers = headers_of(entry)
                path = path_of(headers)
                ended_ms = _ended_ms(timestamp_ms, path, unwritten)
                removal = StateDelete(OutOfFocus.EXPIRED, ended_ms, path, unwritten, bookmark_of(headers))
                state_deletes[journal_key] = removal
            else:
                deleted = alike.get((timestamp_ms, unwritten))
                if deleted is None:
                    deleted = StateDelete(OutOfFocus.EXPIRED, timestamp_ms + unwritten, b"", unwritten)
                    alike[timestamp_ms, unwritten] = deleted
                state_deletes[journal_key] = deleted
            gone.append((key, source, offset, deadline_ms))
            left.append((key, entry))
            if sequence < oldest:
                oldest = sequence
        for subscriber in subscribers:
            seen = left
            one = subscriber.subscription
            if subscriber.predicates or subscriber.fault or max(one.since, one.unsure) >= oldest:
                seen = [
                    (key, entry)
                    for journal_key, (key, entry) in zip(journal_keys, left, strict=True)
                    if subscriber.has_seen(state.view(journal_key, entry))
                ]
            if seen:
                step.deliveries.append(OutOfFocusBatch(one.id, seen))
        state.drop_all(journal_keys, step)
        if gone:
            step.events.append(_expired_event(self._decided_ms(now_ms), ExpiryBatch(gone)))

    def delete(self, journal_key: bytes, entry: bytes, at_ms: int, step: Step) -> None:
        """Remove a record by a command that takes effect at `at_ms`."""
        facts = facts_of(entry)
        # A delete is later than the record that it deletes, even in the same millisecond.
        removal = StateDelete(OutOfFocus.DELETED, max(at_ms, next_instant(facts.timestamp_ms)))
        self._remove(journal_key, entry, removal, step)
        self._retain(journal_key, at_ms, -1, NO_SOURCE, at_ms, step, replicated_ms=removal.timestamp_ms)
        bookmark = self._state.bookmark(facts.source, facts.offset)
        step.events.append(
            ShardEvent(EventKind.DELETED, at_ms, EventRecord(bookmark, journal_key[1:], facts.deadline_ms))
        )

    def delete_by_update(self, journal_key: bytes, entry: bytes | None, update: Update, step: Step) -> None:
        """Remove a record by a null value. Without a record, a tombstone may be necessary."""
        path = b"" if update.origin is None else update.origin.path
        spent = update.origin is not None and update.origin.spent
        if entry is None:
            # The deletion of a missing record matters only if its key may be on several partitions, or if it comes from
            # another deployment. Only then are other deployments told.
            if self._settings.several or update.origin is not None:
                bookmark = b"" if update.origin is None else update.origin.bookmark
                self._report_missing_delete(journal_key, update.stamp_ms, step, path, bookmark, spent=spent)
                self._retain_for_update(update, journal_key, step, update.stamp_ms)
            return
        facts = facts_of(entry)
        removal = StateDelete(
            OutOfFocus.EXPIRED if spent else OutOfFocus.DELETED,
            _removed_ms(update, facts),
            path,
            unwritten=spent,
            bookmark=b"" if update.origin is None else update.origin.bookmark,
        )
        self._remove(journal_key, entry, removal, step)
        self._retain_for_update(update, journal_key, step, removal.timestamp_ms)
        if spent:
            self._record_removal(journal_key, entry, update.at_ms, step)
            return
        about = EventRecord(self._state.bookmark(facts.source, facts.offset), update.key, facts.deadline_ms)
        step.events.append(ShardEvent(EventKind.DELETED, update.at_ms, about))

    def expire_on_arrival(
        self, journal_key: bytes, entry: bytes | None, fresh: bytes, update: Update, step: Step
    ) -> None:
        """Report an update that has expired on arrival, and remove the record that it replaces."""
        path, bookmark = (b"", b"") if update.origin is None else (update.origin.path, update.origin.bookmark)
        at_ms = update.stamp_ms if entry is None else _removed_ms(update, facts_of(entry))
        removal = StateDelete(OutOfFocus.EXPIRED, at_ms, path, unwritten=True, bookmark=bookmark)
        if entry is not None:
            self._remove(journal_key, entry, removal, step)
        elif self._state.retains_all_deletes:  # another deployment may have an older record
            step.state_deletes[journal_key] = removal
            self._state.apply_change(step, journal_key, None)
        if self.retains:
            self._retain_for_update(update, journal_key, step, at_ms)
        self._record_removal(journal_key, fresh, update.at_ms, step)

    def purge(self, journal_key: bytes, entry: bytes, now_ms: int, step: Step, reason: Reason) -> None:
        """Remove a record because the SOW topic ends (C4, Q18).

        Copies elsewhere may still be used, so they learn of it as of an expiry: the end of this topic deletes nothing
        there (S10).
        """
        out_of_focus = OutOfFocus.EXPIRED if reason is Reason.AUTO_DELETED else OutOfFocus.DELETED
        self._remove(journal_key, entry, _end_of(entry, unwritten=journal_key in step.changes), step, out_of_focus)
        self._record_removal(journal_key, entry, now_ms, step, (reason,))

    def record_version_removal(
        self, version: Version, reason: Reason, at_ms: int, step: Step, detail: str = ""
    ) -> None:
        """Record that a scheduled version leaves without taking effect."""
        headers = unpack_headers(version.headers)
        self._add_removal(
            step, self._state.bookmark(version.source, version.offset), self._own_key(version.key, headers),
            version.payload, publishers_headers(headers), version.timestamp_ms, version.deadline_ms, (reason,), at_ms,
            detail, version.key, record_key=version.key if self._settings.key else None,
            incarnation=self._state.incarnation(version.source),
        )  # fmt: skip

    def refuse(self, record: Record, topic: str, partition: int, refused: Refused, at_ms: int, step: Step) -> None:
        """Make a dead letter of a record that cannot be taken in. The state is not changed (L12, S1).

        A payload that could not be decoded is not decoded again, since that may end the process (X7). If the lifetime
        was refused, the payload is decoded here for the first time, while the record is still noted as in progress.
        """
        record_key = None
        if refused.reason is Reason.INVALID_LIFETIME:
            record_key = key_of_refused(record.value, record.headers, self._settings)
        self._add_removal(
            step, Bookmark(topic, partition, record.offset), record.key, record.value, tuple(record.headers),
            record.timestamp, NEVER, (refused.reason,), at_ms, str(refused), None, in_log=True, record_key=record_key,
            incarnation=self._state.incarnation(self._state.find_source(topic, partition)),
        )  # fmt: skip

    def retain(self, journal_key: bytes, at_ms: int, step: Step) -> None:
        """Keep a tombstone of a key that a command deleted, since an older update may arrive later (C1)."""
        known = self._state.tombstones.get(journal_key)
        stamp_ms = at_ms if known is None else max(at_ms, next_instant(known.replicated_ms))
        self._report_missing_delete(journal_key, stamp_ms, step)
        if known is not None and known.timestamp_ms > at_ms and self._orders_by_time(known):
            # The removal is later than the command, so updates between the two stay ignored (C46).
            kept = known._replace(replicated_ms=stamp_ms)
            self._state.apply_change(step, journal.TOMBSTONE + journal_key[1:], kept.pack())
            return
        self._retain(journal_key, at_ms, -1, NO_SOURCE, at_ms, step, replicated_ms=stamp_ms)

    def _orders_by_time(self, tombstone: Tombstone) -> bool:
        """Return whether a removal's timestamp decides which updates that were published here are later than it."""
        return not tombstone.path and (self._settings.several or tombstone.source == NO_SOURCE)

    def _report_missing_delete(
        self,
        journal_key: bytes,
        timestamp_ms: int,
        step: Step,
        path: bytes = b"",
        bookmark: bytes = b"",
        *,
        spent: bool = False,
    ) -> None:
        """Report the deletion of a missing record to other deployments, which may have an older one (C56).

        Otherwise the deployments would differ for ever.
        """
        if self._state.retains_all_deletes:
            how = OutOfFocus.EXPIRED if spent else OutOfFocus.DELETED
            step.state_deletes[journal_key] = StateDelete(how, timestamp_ms, path, spent, bookmark)
            self._state.apply_change(step, journal_key, None)

    def _remove(
        self, journal_key: bytes, entry: bytes, removal: StateDelete, step: Step, out_of_focus: OutOfFocus | None = None
    ) -> None:
        """Remove a record. Subscribers are told the removal's reason, unless another one is given."""
        state = self._state
        if state.subscribers:
            self._fan_out.send_removal(journal_key, entry, out_of_focus or removal.reason, step)
        step.state_deletes[journal_key] = removal
        state.apply_change(step, journal_key, None)

    def _retain(
        self,
        journal_key: bytes,
        timestamp_ms: int,
        offset: int,
        source: int,
        at_ms: int,
        step: Step,
        path: bytes = b"",
        replicated_ms: int = -1,
        position: LogPosition | None = None,
    ) -> None:
        if self._settings.tombstone_ms:
            until_ms = min(at_ms + self._settings.tombstone_ms, NEVER)
            tombstone = Tombstone(
                until_ms, timestamp_ms, offset, source, path, max(timestamp_ms, replicated_ms), position
            )
            self._state.apply_change(step, journal.TOMBSTONE + journal_key[1:], tombstone.pack())

    def _retain_for_update(self, update: Update, journal_key: bytes, step: Step, replicated_ms: int) -> None:
        """Keep a tombstone for a removal by an update, which other deployments learn of as of `replicated_ms`."""
        path, position = (b"", None) if update.origin is None else (update.origin.path, update.origin.position)
        # With keys from payloads, a timestamp ahead of the clock must not survive its record in a tombstone (C88).
        stamp_ms = update.timestamp_ms if self._settings.several else replicated_ms
        self._retain(
            journal_key, stamp_ms, update.offset, update.source, update.at_ms, step, path, replicated_ms, position
        )  # fmt: skip

    def _record_removal(
        self, journal_key: bytes, entry: bytes, now_ms: int, step: Step, reasons: tuple[Reason, ...] = _TIME_LIMIT
    ) -> None:
        now_ms = self._decided_ms(now_ms)
        facts = facts_of(entry)
        bookmark = self._state.bookmark(facts.source, facts.offset)
        if self._settings.dead_letter_reasons.isdisjoint(reasons) and not self._settings.keeps_copies:
            step.events.append(
                _expired_event(now_ms, EventRecord(bookmark, journal_key[1:], facts.deadline_ms), reasons)
            )
            return
        key, headers = journal_key[1:], headers_of(entry)
        self._add_removal(
            step, bookmark, self._own_key(key, headers), payload_of(entry), publishers_headers(headers),
            facts.timestamp_ms, deadline_of(entry), reasons, now_ms, "", key,
            record_key=key if self._settings.key else None, incarnation=self._state.incarnation(facts.source),
        )  # fmt: skip

    def _own_key(self, key: bytes, headers: Headers) -> bytes | None:
        """Return the Kafka record's own key, which is another one if the payload gives the key (D2)."""
        return own_key_of(headers) if self._settings.key else key

    def _decided_ms(self, at_ms: int) -> int:
        """Return the instant that dates a decision effective at `at_ms`: not before the epoch began (C53)."""
        return max(at_ms, self.began_ms)

    def _add_removal(
        self,
        step: Step,
        bookmark: Bookmark,
        original_key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        timestamp_ms: int,
        deadline_ms: int,
        reasons: tuple[Reason, ...],
        at_ms: int,
        detail: str,
        key: bytes | None,
        in_log: bool = False,
        record_key: bytes | None = None,
        incarnation: int = 0,
    ) -> None:
        """Record a removal, with a dead letter if one of its reasons requires one (C22, C25, D1)."""
        at_ms = self._decided_ms(at_ms)
        reasons = in_order(reasons)
        lettered = not self._settings.dead_letter_reasons.isdisjoint(reasons)
        if lettered or self._settings.keeps_copies:
            removal = Removal(
                bookmark,
                original_key,
                value,
                headers,
                timestamp_ms,
                reasons,
                at_ms,
                deadline_ms,
                detail,
                in_log,
                lettered,
                record_key,
                incarnation,
            )
            step.removals.append(removal)
        kind = EventKind.DEAD_LETTERED if lettered else EventKind.EXPIRED
        about = EventRecord(bookmark, key, deadline_ms)
        step.events.append(ShardEvent(kind, at_ms, about, detail=detail, reasons=reasons))


def _end_of(entry: bytes, *, unwritten: bool) -> StateDelete:
    """Return how a record leaves that ends here, and by itself at every other deployment."""
    headers = headers_of(entry)
    path = path_of(headers)
    ended_ms = _ended_ms(facts_of(entry).timestamp_ms, path, unwritten)
    return StateDelete(OutOfFocus.EXPIRED, ended_ms, path, unwritten, bookmark_of(headers) if path else b"")


def _ended_ms(timestamp_ms: int, path: bytes, unwritten: bool) -> int:
    """Return the timestamp with which other deployments learn that a record has expired, ms since the epoch.

    It is later than that of an update that they never saw and that was published here, since they may have a record
    before it with an equal timestamp.
    """
    return next_instant(timestamp_ms) if unwritten and not path else timestamp_ms


def _removed_ms(update: Update, facts: Facts) -> int:
    """Return the timestamp with which other deployments learn that an update removes a record, ms since the epoch.

    It is later than that of the record. Only the timestamp of a replicated update stays as it is everywhere.
    """
    return update.stamp_ms if update.origin is not None else max(update.stamp_ms, next_instant(facts.timestamp_ms))


def _expired_event(at_ms: int, about: EventRecord | ExpiryBatch, reasons: tuple[Reason, ...] = _TIME_LIMIT) -> SowEvent:
    return ShardEvent(EventKind.EXPIRED, at_ms, about, reasons=reasons)
