"""The life of a record: from its update over its replacements to its removal, and who is told (S2 to S7).

Every method emits changes through `SowState.change`, which applies them, and puts the outputs into the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason, in_order
from lapse.core.record import Record
from lapse.core.sow import delta, journal
from lapse.core.sow.arrival import Refused, Update, fault
from lapse.core.sow.grave import NO_SOURCE, Grave
from lapse.core.sow.origin import is_replicated, path_of
from lapse.core.sow.output import (
    Departure,
    Expelled,
    Expiries,
    Happening,
    Kind,
    Letter,
    OutOfFocus,
    Place,
    Removal,
    Step,
)
from lapse.core.sow.record import HEAD, Facts, deadline_of, facts_of, headers_of, pack, payload_of, unpack_headers
from lapse.core.sow.state import SowState
from lapse.core.sow.version import Version
from lapse.core.sow.version import journal_key as version_name
from lapse.core.sow.view import View

_TIME_LIMIT: Final = (Reason.TIME_LIMIT,)


class Life:
    """What happens to the records of one shard.

    Args:
        state: the shard's memory.
    """

    __slots__ = ("_buries", "_expires_plainly", "_settings", "_state")

    def __init__(self, state: SowState) -> None:
        self._state = state
        self._settings = state.settings
        # Updates of one key come in one order unless they stand on several partitions, or come from elsewhere, too.
        self._buries = bool(self._settings.key) or self._settings.remembers_removed
        lettered = Reason.TIME_LIMIT in self._settings.dead_letter_reasons
        self._expires_plainly = not (self._buries or lettered or self._settings.keeps_copies)

    # --- updates ---------------------------------------------------------------------------------------------

    def take(self, update: Update, step: Step) -> None:
        """Let an update count: schedule it, or let it take effect as of its instant (C1).

        Raises:
            Refused: a delta that does not fit.
        """
        if update.enqueue_at_ms is not None:
            self._schedule(update, step)
            return
        name = journal.RECORD + update.key
        self.settle(name, update.at_ms, step)
        self._take_effect(name, update, step, scheduled=False)

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
        self._state.change(step, version_name(update.source, update.offset), version.pack())
        place = self._state.place(update.source, update.offset)
        step.departures.append(Departure(Happening.SCHEDULED, update.at_ms, place, update.key, update.deadline_ms))

    def settle(self, name: bytes, at_ms: int, step: Step) -> None:
        """Let happen to one key what its own instants up to `at_ms` bring: expiry, and scheduled versions (C1, C2)."""
        state = self._state
        while True:
            version = state.schedule.next_due_of(name[1:]) if state.schedule else None
            version_ms = version[0] if version is not None else NEVER
            entry = state.entries.get(name)
            if entry is not None and state.is_due(entry, min(at_ms, version_ms)):
                self.expire(name, entry, at_ms, step)
            elif version is not None and version_ms <= at_ms:
                self.materialise(version[1], at_ms, step)
            else:
                return

    def materialise(self, version_key: bytes, now_ms: int, step: Step) -> None:
        """Let a scheduled version take effect, or leave if its deadline came first (C47)."""
        state = self._state
        version = state.schedule.get(version_key)
        assert version is not None, "only versions that are there are due"
        state.change(step, version_key, None)
        place = state.place(version.source, version.offset)
        if self._settings.expiration.enabled and version.deadline_ms <= version.enqueue_at_ms:
            self._version_leaves(version, Reason.TIME_LIMIT, now_ms, step)
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
            self._take_effect(journal.RECORD + version.key, update, step, scheduled=True)
        except Refused as refused:
            headers = tuple(unpack_headers(version.headers))
            self._leave(
                step, place, version.key, version.payload, headers, version.timestamp_ms,
                version.deadline_ms, (refused.reason,), now_ms, str(refused), version.key,
            )  # fmt: skip

    def withdraw(self, version_key: bytes, at_ms: int, step: Step) -> None:
        """Take a scheduled version out by request (L5)."""
        version = self._state.schedule.get(version_key)
        assert version is not None, "only versions that are there are withdrawn"
        self._state.change(step, version_key, None)
        self._version_leaves(version, Reason.WITHDRAWN, at_ms, step)

    def purge(self, name: bytes, entry: bytes, now_ms: int, step: Step) -> None:
        """Take a record out because the whole SOW topic is deleted (C4)."""
        facts = facts_of(entry)
        self._remove(name, entry, Removal(OutOfFocus.DELETED, max(now_ms, facts.timestamp_ms + 1)), step)
        self._departed(name, entry, now_ms, step, (Reason.PURGED,))

    def purge_version(self, version_key: bytes, now_ms: int, step: Step) -> None:
        """Take a scheduled version out for the same reason."""
        version = self._state.schedule.get(version_key)
        assert version is not None, "only versions that are there are purged"
        self._state.change(step, version_key, None)
        self._version_leaves(version, Reason.PURGED, now_ms, step)

    def _version_leaves(self, version: Version, reason: Reason, at_ms: int, step: Step) -> None:
        self._leave(
            step, self._state.place(version.source, version.offset), version.key, version.payload,
            tuple(unpack_headers(version.headers)), version.timestamp_ms, version.deadline_ms, (reason,), at_ms, "",
            version.key,
        )  # fmt: skip

    def _take_effect(self, name: bytes, update: Update, step: Step, *, scheduled: bool) -> None:
        """Replace, merge into, or delete what is there, unless that is later (C46)."""
        state = self._state
        entry = state.entries.get(name)
        if self._is_late(name, entry, update, scheduled):
            return
        if update.payload is None:
            if entry is not None:
                self._delete(name, entry, update, step)
            elif update.origin is not None and update.origin.spent:
                return
            elif self._buries:  # an older update may be on its way
                self._bury(name, update.timestamp_ms, update.offset, update.source, update.at_ms, step)
            return
        payload = update.payload
        if update.delta:
            payload = self._whole(payload) if entry is None else self._merged(entry, update)
        facts = Facts(
            update.deadline_ms, self._stamp(name, entry, update), state.sequence + 1, update.offset, update.source,
            len(update.headers),
        )  # fmt: skip
        fresh = pack(facts, update.headers, payload)
        if state.is_due(fresh, update.at_ms):
            self._expire_on_arrival(name, entry, fresh, update, step)
            return
        if state.graves and name in state.graves:
            state.change(step, journal.GRAVE + update.key, None)
        state.change(step, name, fresh)
        if state.subscribers:
            self.tell(name, entry, fresh, step)

    def _is_late(self, name: bytes, entry: bytes | None, update: Update, scheduled: bool) -> bool:
        """Whether what is known of the key is later than this update.

        Within one underlying partition the log's order decides. Between several, and for a scheduled version against
        updates, the stamps do, then the partition, the topic and the offset.
        """
        state = self._state
        if entry is not None:
            facts = facts_of(entry)
            if scheduled:
                return facts.timestamp_ms > update.timestamp_ms
            path = path_of(headers_of(entry)) if facts.headers_bytes else b""
            if path or update.origin is not None:
                return self._is_beaten(entry, facts, path, update)
            if not self._settings.key and self._is_one_partition(facts.source, update.source):
                return False
            return self._order(facts.timestamp_ms, facts.source, facts.offset) >= self._order(
                update.timestamp_ms, update.source, update.offset
            )
        grave = state.graves.get(name) if state.graves else None
        if grave is None or (self._settings.remembers_removed and self._is_local(grave, update)):
            return False
        return self._order(grave.timestamp_ms, grave.source, grave.offset) >= self._order(
            update.timestamp_ms, update.source, update.offset
        )

    def _is_one_partition(self, source: int, other: int) -> bool:
        """Whether two sources are one partition, if only of topics that bore one name after the other (C42)."""
        return source == other or self._state.sources[source] == self._state.sources[other]

    def _is_local(self, grave: Grave, update: Update) -> bool:
        """Whether an update was published here behind what removed the record, so that the log's order decides."""
        return update.origin is None and not self._settings.key and grave.source != NO_SOURCE

    def _is_beaten(self, entry: bytes, facts: Facts, path: bytes, update: Update) -> bool:
        """Whether a stored record is later than an update, where one of the two was replicated (S10).

        What is published here is always later than what is here; what comes along one path comes in its order.
        """
        if update.origin is None:
            return False
        if update.origin.spent:
            return facts.timestamp_ms >= update.timestamp_ms
        if path == update.origin.path:
            return facts.timestamp_ms > update.timestamp_ms
        return (facts.timestamp_ms, payload_of(entry)) >= (update.timestamp_ms, update.payload or b"")

    def _stamp(self, name: bytes, entry: bytes | None, update: Update) -> int:
        """As of when an update counts: later than what was replicated and it replaces, whose clock may be ahead."""
        if update.origin is not None:
            return update.timestamp_ms
        if entry is None:
            grave = self._state.graves.get(name) if self._settings.remembers_removed else None
            return update.timestamp_ms if grave is None else max(update.timestamp_ms, grave.timestamp_ms + 1)
        facts = facts_of(entry)
        if facts.timestamp_ms < update.timestamp_ms or not (facts.headers_bytes and path_of(headers_of(entry))):
            return update.timestamp_ms
        return facts.timestamp_ms + 1

    def _order(self, timestamp_ms: int, source: int, offset: int) -> tuple[int, int, str, int]:
        if source == NO_SOURCE:
            return timestamp_ms, -1, "", -1
        topic, partition = self._state.sources[source]
        return timestamp_ms, partition, topic, offset

    def _whole(self, payload: bytes) -> bytes:
        """A delta as a record of its own, in the form that payloads have (C44)."""
        settings = self._settings
        try:
            delta.merge({}, settings.parse_delta(payload))
        except (ValueError, RecursionError) as error:
            raise Refused(Reason.UNDECODABLE, f"a delta that cannot be merged: {fault(error)}") from error
        if settings.parse_delta is settings.parse_exactly:
            return payload
        try:
            settings.parse(payload)
        except (ValueError, RecursionError):
            try:
                return settings.serialize(settings.parse_delta(payload), payload)
            except (ValueError, TypeError, RecursionError) as error:
                raise Refused(Reason.UNDECODABLE, f"a delta that is no whole record: {fault(error)}") from error
        return payload

    def _merged(self, entry: bytes, update: Update) -> bytes:
        assert update.payload is not None
        try:
            stored = self._settings.parse_exactly(payload_of(entry))
        except (ValueError, RecursionError) as error:
            raise Refused(
                Reason.UNDECODABLE, f"a delta to a record whose payload cannot be read: {fault(error)}"
            ) from error
        try:
            merged = self._settings.serialize(
                delta.merge(stored, self._settings.parse_delta(update.payload)), payload_of(entry)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(Reason.UNDECODABLE, f"a delta that cannot be merged: {fault(error)}") from error
        size, most_bytes = len(merged) + len(update.key) + len(update.headers), self._settings.max_record_bytes
        if size > most_bytes:
            raise Refused(
                Reason.UNDECODABLE,
                f"a delta that makes a record of {size:,} bytes; this SOW topic keeps {most_bytes:,} at most",
            )
        return merged

    # --- removals --------------------------------------------------------------------------------------------

    def expire(self, name: bytes, entry: bytes, now_ms: int, step: Step) -> None:
        """Remove a record whose deadline has passed: a delete with the reason `time_limit` (S4)."""
        facts = facts_of(entry)
        path = path_of(headers_of(entry)) if facts.headers_bytes else b""
        self._remove(name, entry, Removal(OutOfFocus.EXPIRED, facts.timestamp_ms, path), step)
        if self._buries:
            self._bury(name, facts.timestamp_ms, facts.offset, facts.source, now_ms, step)
        self._departed(name, entry, now_ms, step)

    def expire_all(self, names: Sequence[bytes], now_ms: int, step: Step) -> None:
        """The same as `expire` for each of many: where nothing is written but events, quickly."""
        state = self._state
        entries, removals = state.entries, step.removals
        subscribers = state.subscribers.values()
        if not self._expires_plainly or any(one.query is not None for one in subscribers):
            for name in names:
                self.expire(name, entries[name], now_ms, step)
            return
        unpack = HEAD.unpack_from
        gone: list[tuple[bytes, int, int, int]] = []
        left: list[tuple[bytes, bytes]] = []
        alike: dict[int, Removal] = {}
        oldest = state.sequence
        for name in names:
            entry = entries[name]
            deadline_ms, timestamp_ms, sequence, offset, source, size = unpack(entry)
            key = name[1:]
            if size and is_replicated(entry, size):
                removals[name] = Removal(OutOfFocus.EXPIRED, timestamp_ms, path_of(headers_of(entry)))
            else:
                removal = alike.get(timestamp_ms)
                if removal is None:
                    removal = alike[timestamp_ms] = Removal(OutOfFocus.EXPIRED, timestamp_ms)
                removals[name] = removal
            gone.append((key, source, offset, deadline_ms))
            left.append((key, entry))
            if sequence < oldest:
                oldest = sequence
        for subscriber in subscribers:
            seen = left
            if subscriber.predicates or subscriber.fault or subscriber.subscription.since >= oldest:
                seen = [
                    (key, entry)
                    for name, (key, entry) in zip(names, left, strict=True)
                    if subscriber.has_seen(state.view(name, entry))
                ]
            if seen:
                step.messages.append(Expelled(subscriber.subscription.id, seen))
        state.drop_all(names, step)
        if gone:
            step.departures.append(Expiries(now_ms, gone))

    def delete(self, name: bytes, entry: bytes, at_ms: int, step: Step) -> None:
        """Remove a record by a command that counts as of `at_ms`."""
        facts = facts_of(entry)
        # A delete is later than what it deletes, even in the same millisecond.
        self._remove(name, entry, Removal(OutOfFocus.DELETED, max(at_ms, facts.timestamp_ms + 1)), step)
        self.bury(name, at_ms, step)
        place = self._state.place(facts.source, facts.offset)
        step.departures.append(Departure(Happening.DELETED, at_ms, place, name[1:], facts.deadline_ms))

    def bury(self, name: bytes, at_ms: int, step: Step) -> None:
        """Remember that a command deleted a key, whether or not it was there: an update may be on its way (C1)."""
        self._bury(name, at_ms, -1, NO_SOURCE, at_ms, step)

    def _delete(self, name: bytes, entry: bytes, update: Update, step: Step) -> None:
        facts = facts_of(entry)
        spent = update.origin is not None and update.origin.spent
        path = b"" if update.origin is None else update.origin.path
        removal = Removal(
            OutOfFocus.EXPIRED if spent else OutOfFocus.DELETED, max(update.timestamp_ms, facts.timestamp_ms + 1), path
        )
        self._remove(name, entry, removal, step)
        if self._buries:
            self._bury(name, update.timestamp_ms, update.offset, update.source, update.at_ms, step)
        if spent:
            self._departed(name, entry, update.at_ms, step)
            return
        place = self._state.place(facts.source, facts.offset)
        step.departures.append(Departure(Happening.DELETED, update.at_ms, place, update.key, facts.deadline_ms))

    def _expire_on_arrival(self, name: bytes, entry: bytes | None, fresh: bytes, update: Update, step: Step) -> None:
        """The update is dead already: it replaces what is there, and takes it along."""
        if entry is not None:
            path = b"" if update.origin is None else update.origin.path
            self._remove(name, entry, Removal(OutOfFocus.EXPIRED, update.timestamp_ms, path), step)
        if self._buries:
            self._bury(name, update.timestamp_ms, update.offset, update.source, update.at_ms, step)
        self._departed(name, fresh, update.at_ms, step)

    def _remove(self, name: bytes, entry: bytes, removal: Removal, step: Step) -> None:
        state = self._state
        if state.subscribers:
            before = state.view(name, entry)
            for subscriber in state.subscribers.values():
                if subscriber.has_seen(before):
                    message = before.message(Kind.OUT_OF_FOCUS, subscriber.subscription.id, reason=removal.reason)
                    step.messages.append(message)
                if subscriber.query is not None:
                    subscriber.query.forget(name)
        step.removals[name] = removal
        state.change(step, name, None)

    def _bury(self, name: bytes, timestamp_ms: int, offset: int, source: int, at_ms: int, step: Step) -> None:
        if self._settings.grave_ms:
            grave = Grave(min(at_ms + self._settings.grave_ms, NEVER), timestamp_ms, offset, source)
            self._state.change(step, journal.GRAVE + name[1:], grave.pack())

    def _departed(
        self, name: bytes, entry: bytes, now_ms: int, step: Step, reasons: tuple[Reason, ...] = _TIME_LIMIT
    ) -> None:
        facts = facts_of(entry)
        place = Place(*self._state.sources[facts.source], facts.offset)
        if self._settings.dead_letter_reasons.isdisjoint(reasons) and not self._settings.keeps_copies:
            step.departures.append(Departure(Happening.EXPIRED, now_ms, place, name[1:], facts.deadline_ms, reasons))
            return
        self._leave(
            step, place, name[1:], payload_of(entry), tuple(headers_of(entry)), facts.timestamp_ms,
            deadline_of(entry), reasons, now_ms, "", name[1:],
        )  # fmt: skip

    def refuse(self, record: Record, topic: str, partition: int, refused: Refused, at_ms: int, step: Step) -> None:
        """Turn a record that cannot be taken into a dead letter; the state stays as it is (L12, S1)."""
        self._leave(
            step, Place(topic, partition, record.offset), record.key, record.value, tuple(record.headers),
            record.timestamp, NEVER, (refused.reason,), at_ms, str(refused), None, in_log=True,
        )  # fmt: skip

    def _leave(
        self,
        step: Step,
        place: Place,
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
    ) -> None:
        """Tell of a removal, and write a letter if one of its reasons asks for one (C22, C25, D1)."""
        reasons = in_order(reasons)
        lettered = not self._settings.dead_letter_reasons.isdisjoint(reasons)
        if lettered or self._settings.keeps_copies:
            letter = Letter(
                place, original_key, value, headers, timestamp_ms, reasons, at_ms, deadline_ms, detail, in_log
            )
            if lettered:
                step.letters.append(letter)
            if self._settings.keeps_copies:
                step.copies.append(letter)
        happening = Happening.DEAD_LETTERED if lettered else Happening.EXPIRED
        step.departures.append(Departure(happening, at_ms, place, key, deadline_ms, reasons, "", detail))

    # --- who is told -----------------------------------------------------------------------------------------

    def tell(self, name: bytes, entry: bytes | None, fresh: bytes, step: Step) -> None:
        """Tell subscribers of an update (S6, S7)."""
        state = self._state
        before = None if entry is None else state.view(name, entry)
        after = state.view(name, fresh)
        for subscriber in state.subscribers.values():
            subscription = subscriber.subscription
            seen = before is not None and subscriber.has_seen(before)
            if subscriber.query is not None:
                subscriber.query.forget(name)
            if subscriber.selects(after):
                changed = self._changed(before, after) if seen and subscription.deltas else None
                kind = Kind.PUBLISH if changed is None else Kind.DELTA
                step.messages.append(after.message(kind, subscription.id, payload=changed))
            elif seen and before is not None:
                reason = OutOfFocus.NO_LONGER_MATCHES
                message = before.message(Kind.OUT_OF_FOCUS, subscription.id, place=after.place, reason=reason)
                step.messages.append(message)

    def _changed(self, before: View | None, after: View) -> bytes | None:
        """The changed fields, written; None if only the full record can tell."""
        try:
            changed = delta.difference(before.payload, after.payload) if before is not None else None
            return None if changed is None else self._settings.serialize_delta(changed)
        except (ValueError, TypeError, RecursionError):
            return None
