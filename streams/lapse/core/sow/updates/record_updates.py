"""Record updates: apply updates, immediate and scheduled, to stored records (S2, S3).

Every method makes changes with `SowState.apply_change`, which applies them, and puts the outputs into the step.
"""

from __future__ import annotations

from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.sow import journal
from lapse.core.sow.arrival.arrival import Refused, Update, describe_payload_fault
from lapse.core.sow.arrival.precedence import Precedence
from lapse.core.sow.records.record import Facts, pack, payload_of
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import EventRecord, RunningDeletion, Step
from lapse.core.sow.subscriptions.fan_out import SubscriberFanOut
from lapse.core.sow.updates import delta
from lapse.core.sow.updates.version import Version
from lapse.core.sow.updates.version import journal_key as version_name

_OLDER: Final = "older than what is known of its key"


class RecordUpdates:
    """Applies updates to the records of one shard.

    Args:
        state: the shard's state.
        removals: removes records.
        fan_out: makes messages to the shard's subscribers.

    Attributes:
        deletion: the last deletion that was not finished at once.
    """

    __slots__ = ("_fan_out", "_precedence", "_removals", "_settings", "_state", "deletion")

    def __init__(self, state: SowState, removals: Removals, fan_out: SubscriberFanOut) -> None:
        self._state = state
        self._settings = state.settings
        self._removals = removals
        self._fan_out = fan_out
        self._precedence = Precedence(state)
        self.deletion: RunningDeletion | None = None

    def take_in(self, update: Update, step: Step) -> None:
        """Schedule an update, or apply it as of its instant (C1).

        Raises:
            Refused: a delta cannot be merged.
        """
        if update.enqueue_at_ms is not None:
            self._schedule(update, step)
            return
        journal_key = journal.RECORD + update.key
        self.apply_due(journal_key, update.at_ms, step)
        self._apply_update(journal_key, update, step, scheduled=False)

    def _schedule(self, update: Update, step: Step) -> None:
        assert update.enqueue_at_ms is not None
        version = Version(
            update.enqueue_at_ms,
            update.deadline_ms,
            update.timestamp_ms,
            update.offset,
            update.source,
            update.delta,
            update.key,
            update.headers,
            update.payload,
        )
        self._state.apply_change(step, version_name(update.source, update.offset), version.pack())
        about = EventRecord(self._state.bookmark(update.source, update.offset), update.key, update.deadline_ms)
        step.events.append(ShardEvent(EventKind.SCHEDULED, update.at_ms, about))

    def apply_due(self, journal_key: bytes, at_ms: int, step: Step) -> None:
        """Do what is due for one key up to `at_ms`: expiry and scheduled versions (C1, C2)."""
        state = self._state
        while True:
            version = state.schedule.next_due_of(journal_key[1:]) if state.schedule else None
            version_ms = version[0] if version is not None else NEVER
            entry = state.entries.get(journal_key)
            if entry is not None and state.is_due(entry, min(at_ms, version_ms)):
                self._removals.expire(journal_key, entry, at_ms, step)
            elif version is not None and version_ms <= at_ms:
                self.materialise(version[1], at_ms, step)
            else:
                return

    def materialise(self, version_key: bytes, now_ms: int, step: Step) -> None:
        """Apply a scheduled version, or remove it if its deadline came first (C47)."""
        state = self._state
        version = state.schedule.get(version_key)
        assert version is not None, "only versions that are there are due"
        state.apply_change(step, version_key, None)
        if self._settings.expiration.enabled and version.deadline_ms <= version.enqueue_at_ms:
            self._removals.record_version_removal(version, Reason.TIME_LIMIT, now_ms, step)
            return
        update = Update(
            version.key,
            version.enqueue_at_ms,
            version.enqueue_at_ms,
            None,
            version.deadline_ms,
            version.offset,
            version.source,
            version.delta,
            version.headers,
            version.payload,
        )
        try:
            self._apply_update(journal.RECORD + version.key, update, step, scheduled=True)
        except Refused as refused:
            self._removals.record_version_removal(version, refused.reason, now_ms, step, str(refused))

    def remove_version(self, version_key: bytes, reason: Reason, at_ms: int, step: Step) -> None:
        """Remove a scheduled version: by request (L5), or because the SOW topic is deleted (C4)."""
        version = self._state.schedule.get(version_key)
        assert version is not None, "only versions that are there are removed"
        self._state.apply_change(step, version_key, None)
        self._removals.record_version_removal(version, reason, at_ms, step)

    def _apply_update(self, journal_key: bytes, update: Update, step: Step, *, scheduled: bool) -> None:
        """Replace, merge into or delete the stored record, unless that is later than the update (C46)."""
        state = self._state
        if update.origin is not None and not state.replicated:
            state.apply_change(step, journal.REPLICATED, b"1")
        if update.delta and self.deletion is not None:
            self.deletion.reach(journal_key, update.at_ms, step)
        entry = state.entries.get(journal_key)
        if self._precedence.is_late(journal_key, entry, update, scheduled):
            if update.origin is None:  # an update that returns by replication is not reported
                bookmark = self._state.bookmark(update.source, update.offset)
                about = EventRecord(bookmark, update.key, update.deadline_ms)
                step.events.append(ShardEvent(EventKind.IGNORED, update.at_ms, about, detail=_OLDER))
            return
        update = self._precedence.stamped(journal_key, entry, update)
        if update.payload is None:
            self._removals.delete_by_update(journal_key, entry, update, step)
            return
        payload = update.payload
        if update.delta:
            payload = self._whole_record(payload) if entry is None else self._merge_delta(entry, update)
        facts = Facts(
            update.deadline_ms, update.stamp_ms, state.sequence + 1, update.offset, update.source, len(update.headers),
        )  # fmt: skip
        fresh = pack(facts, update.headers, payload)
        if state.is_due(fresh, update.at_ms):
            self._removals.expire_on_arrival(journal_key, entry, fresh, update, step)
            return
        if state.tombstones and journal_key in state.tombstones:
            state.apply_change(step, journal.TOMBSTONE + update.key, None)
        state.apply_change(step, journal_key, fresh)
        if state.subscribers:
            self._fan_out.send_update(journal_key, entry, fresh, step)

    def _whole_record(self, payload: bytes) -> bytes:
        """Return a delta as a whole record, in the format of payloads (C44)."""
        settings = self._settings
        try:
            delta.merge({}, settings.parse_delta(payload))
        except (ValueError, RecursionError) as error:
            raise Refused(
                Reason.UNDECODABLE, f"a delta that cannot be merged: {describe_payload_fault(error)}"
            ) from error
        if settings.parse_delta is settings.parse_exactly:
            return payload
        try:
            settings.parse(payload)
        except (ValueError, RecursionError):
            try:
                return settings.serialize(settings.parse_delta(payload), payload)
            except (ValueError, TypeError, RecursionError) as error:
                raise Refused(
                    Reason.UNDECODABLE, f"a delta that is no whole record: {describe_payload_fault(error)}"
                ) from error
        return payload

    def _merge_delta(self, entry: bytes, update: Update) -> bytes:
        assert update.payload is not None
        try:
            stored = self._settings.parse_exactly(payload_of(entry))
        except (ValueError, RecursionError) as error:
            raise Refused(
                Reason.UNDECODABLE, f"a delta to a record whose payload cannot be read: {describe_payload_fault(error)}"
            ) from error
        try:
            merged = self._settings.serialize(
                delta.merge(stored, self._settings.parse_delta(update.payload)), payload_of(entry)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(
                Reason.UNDECODABLE, f"a delta that cannot be merged: {describe_payload_fault(error)}"
            ) from error
        size, most_bytes = len(merged) + len(update.key) + len(update.headers), self._settings.max_record_bytes
        if size > most_bytes:
            raise Refused(
                Reason.UNDECODABLE,
                f"a delta that makes a record of {size:,} bytes; this SOW topic keeps {most_bytes:,} at most",
            )
        return merged
