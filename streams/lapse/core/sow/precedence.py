"""Precedence: whether an update is later than the stored record or tombstone of its key (C46, C42, S10).

Within one underlying partition the order of the log decides (C88). Between partitions, and between a scheduled version
and updates, the timestamps decide, then partition, topic and offset. Between deployments, the instants of the updates
where they were published decide.
"""

from __future__ import annotations

from lapse.core.sow.arrival import Update
from lapse.core.sow.origin import path_of
from lapse.core.sow.record import Facts, facts_of, headers_of, next_instant, payload_of
from lapse.core.sow.state import SowState
from lapse.core.sow.tombstone import NO_SOURCE, Tombstone


class Precedence:
    """Compares updates with the records and tombstones of one shard.

    Args:
        state: the shard's state.
    """

    __slots__ = ("_settings", "_state")

    def __init__(self, state: SowState) -> None:
        self._state = state
        self._settings = state.settings

    def is_late(self, journal_key: bytes, entry: bytes | None, update: Update, scheduled: bool) -> bool:
        """Return whether the stored record or tombstone of a key is later than an update.

        Args:
            journal_key: the record's journal key.
            entry: the packed record, if there is one.
            update: the update.
            scheduled: whether it is a version whose instant has come.
        """
        state = self._state
        if entry is not None:
            facts = facts_of(entry)
            path = path_of(headers_of(entry)) if facts.headers_bytes else b""
            if scheduled:
                # A version published here is later than replicated records, since the other clock may be ahead.
                return facts.timestamp_ms > update.timestamp_ms and not path
            if path or update.origin is not None:
                return _is_beaten(entry, facts, path, update)
            if self._is_one_partition(facts.source, update.source):
                return False  # it is later in the log, whatever the timestamps are (C88)
            return self._order(facts.timestamp_ms, facts.source, facts.offset) >= self._order(
                update.timestamp_ms, update.source, update.offset
            )
        tombstone = state.tombstones.get(journal_key) if state.tombstones else None
        if tombstone is None or self._is_in_order(tombstone, update):
            return False
        if update.origin is not None:
            # At equal instants the record wins over the deletion, as it does if the deletion arrives second.
            return tombstone.replicated_ms > update.timestamp_ms
        local = self._settings.several and not scheduled and tombstone.source != NO_SOURCE
        if local and self._is_one_partition(tombstone.source, update.source):
            return False
        return self._order(tombstone.timestamp_ms, tombstone.source, tombstone.offset) >= self._order(
            update.timestamp_ms, update.source, update.offset
        )

    def stamp(self, journal_key: bytes, entry: bytes | None, update: Update) -> int:
        """Return the timestamp with which an update is stored.

        It is later than that of a replicated record that the update replaces, since the other clock may be ahead. With
        keys from payloads it is not earlier than that of a replaced record from the same partition. So the same update
        is the latest in whatever order partitions are read (C88).
        """
        if update.origin is not None:
            return update.timestamp_ms
        if entry is None:
            tombstone = self._state.tombstones.get(journal_key) if self._state.retains_all_deletes else None
            if (
                tombstone is None
                and self._settings.several
                and (dug := self._state.tombstones.get(journal_key)) is not None
            ):
                behind = dug.source != NO_SOURCE and self._is_one_partition(dug.source, update.source)
                return max(update.timestamp_ms, dug.timestamp_ms) if behind else update.timestamp_ms
            if tombstone is None:
                return update.timestamp_ms
            return max(update.timestamp_ms, next_instant(tombstone.replicated_ms))
        facts = facts_of(entry)
        if self._settings.several and self._is_one_partition(facts.source, update.source):
            return max(facts.timestamp_ms, update.timestamp_ms)
        if facts.timestamp_ms < update.timestamp_ms or not (facts.headers_bytes and path_of(headers_of(entry))):
            return update.timestamp_ms
        return next_instant(facts.timestamp_ms)

    def _is_one_partition(self, source: int, other: int) -> bool:
        """Return whether two sources are the same partition, perhaps of a topic that was created again (C42)."""
        return source == other or self._state.sources[source] == self._state.sources[other]

    def _is_in_order(self, tombstone: Tombstone, update: Update) -> bool:
        """Return whether an update came the same way as a removal, so that it is later by the order of the log."""
        if update.origin is not None:
            return update.origin.path == tombstone.path
        return not self._settings.several and tombstone.source != NO_SOURCE

    def _order(self, timestamp_ms: int, source: int, offset: int) -> tuple[int, int, str, int]:
        if source == NO_SOURCE:
            return timestamp_ms, -1, "", -1
        topic, partition = self._state.sources[source]
        return timestamp_ms, partition, topic, offset


def _is_beaten(entry: bytes, facts: Facts, path: bytes, update: Update) -> bool:
    """Return whether a stored record is later than an update, if one of the two was replicated (S10).

    An update published here is always later than the stored record. Updates along one path arrive in order.
    """
    if update.origin is None:
        return False
    if update.origin.spent:
        return facts.timestamp_ms >= update.timestamp_ms
    if path == update.origin.path:
        return facts.timestamp_ms > update.timestamp_ms
    return (facts.timestamp_ms, payload_of(entry)) >= (update.timestamp_ms, update.payload or b"")
