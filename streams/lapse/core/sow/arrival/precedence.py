"""Precedence: whether an update is later than the stored record or tombstone of its key (C46, C42, S10).

Within one underlying partition the order of the log decides (C88). Between partitions, and between a scheduled version
and updates, the timestamps decide, then partition, topic and offset. Between deployments, the instants of the updates
where they were published decide, then their publishers, then their positions there.
"""

from __future__ import annotations

from lapse.core.sow.arrival.arrival import Update
from lapse.core.sow.arrival.origin import LogPosition, Origin, bookmark_of, path_of, position_of, publisher_of
from lapse.core.sow.records.record import (
    PUBLISHED_MS,
    Facts,
    facts_of,
    headers_of,
    next_instant,
    pack_headers,
    payload_of,
    published_ms,
)
from lapse.core.sow.removal.tombstone import NO_SOURCE, Tombstone
from lapse.core.sow.state import SowState


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
                return published_ms(entry, facts) > update.timestamp_ms and not path
            if path or update.origin is not None:
                return self._is_beaten(entry, facts, path, update)
            if self._is_one_partition(facts.source, update.source):
                return False  # it is later in the log, whatever the timestamps are (C88)
            return self._order(published_ms(entry, facts), facts.source, facts.offset) >= self._order(
                update.timestamp_ms, update.source, update.offset
            )
        tombstone = state.tombstones.get(journal_key) if state.tombstones else None
        if tombstone is None or self._is_in_order(tombstone, update):
            return False
        if update.origin is not None:
            return _is_removal_later(tombstone, update, update.origin)
        if tombstone.path:
            return False  # the other clock may be ahead
        local = self._settings.several and not scheduled and tombstone.source != NO_SOURCE
        if local and self._is_one_partition(tombstone.source, update.source):
            return False
        return self._order(tombstone.timestamp_ms, tombstone.source, tombstone.offset) >= self._order(
            update.timestamp_ms, update.source, update.offset
        )

    def stamped(self, journal_key: bytes, entry: bytes | None, update: Update) -> Update:
        """Return an update with the timestamps with which it is stored.

        Its timestamp among the updates of all deployments is never earlier than that of what it replaces, since another
        clock may be ahead. It is later, unless the positions of both in one log show their order (S10).

        With keys from payloads, its own timestamp is not earlier than that of a replaced record from the same
        partition. So the same update is the latest in whatever order partitions are read (C88).
        """
        if update.origin is not None:
            return _with_published(update, update.at_ms) if update.timestamp_ms > update.at_ms else update
        at_ms = stamp_ms = update.timestamp_ms
        tombstone = self._state.tombstones.get(journal_key) if entry is None and self._state.tombstones else None
        if entry is not None:
            facts = facts_of(entry)
            path = path_of(headers_of(entry)) if facts.headers_bytes else b""
            if self._settings.several and not path and self._is_one_partition(facts.source, update.source):
                at_ms = stamp_ms = max(at_ms, published_ms(entry, facts))
            if facts.timestamp_ms >= at_ms:
                is_later = not path and self._position(facts.source, facts.offset) < self._position(
                    update.source, update.offset
                )
                stamp_ms = facts.timestamp_ms if is_later else next_instant(facts.timestamp_ms)
        elif tombstone is not None:
            in_log = self._settings.several and not tombstone.path and tombstone.source != NO_SOURCE
            if in_log and self._is_one_partition(tombstone.source, update.source):
                at_ms = max(at_ms, tombstone.timestamp_ms)
            stamp_ms = max(at_ms, next_instant(tombstone.replicated_ms))
        if at_ms == stamp_ms == update.timestamp_ms:
            return update
        update = update._replace(timestamp_ms=at_ms, raised_ms=stamp_ms)
        return _with_published(update, at_ms) if stamp_ms != at_ms else update

    def _is_beaten(self, entry: bytes, facts: Facts, path: bytes, update: Update) -> bool:
        """Return whether a stored record is later than an update, if one of the two was replicated (S10).

        An update published here is always later than the stored record. Updates along one path arrive in order.
        """
        origin = update.origin
        if origin is None:
            return False
        if facts.timestamp_ms != update.timestamp_ms:
            return facts.timestamp_ms > update.timestamp_ms
        publisher = publisher_of(path) or origin.target
        if publisher == origin.publisher:
            position, other = position_of(bookmark_of(headers_of(entry))), origin.position
            if position is not None and other is not None:
                return position >= other
            return path != origin.path or not self._is_one_partition(facts.source, update.source)
        if publisher:
            return publisher > origin.publisher
        # An older replicator brought it, so the id of this deployment is unknown.
        return origin.spent or payload_of(entry) >= (update.payload or b"")

    def _is_one_partition(self, source: int, other: int) -> bool:
        """Return whether two sources are the same partition, perhaps of a topic that was created again (C42)."""
        return source == other or self._state.sources[source] == self._state.sources[other]

    def _position(self, source: int, offset: int) -> LogPosition:
        topic, partition = self._state.sources[source]
        return partition, topic, offset

    def _is_in_order(self, tombstone: Tombstone, update: Update) -> bool:
        """Return whether an update came the same way as a removal, so that it is later by the order of the log."""
        if update.origin is not None:
            one_way = update.origin.path == tombstone.path and tombstone.source != NO_SOURCE
            return one_way and self._is_one_partition(tombstone.source, update.source)
        return not self._settings.several and tombstone.source != NO_SOURCE

    def _order(self, timestamp_ms: int, source: int, offset: int) -> tuple[int, int, str, int]:
        if source == NO_SOURCE:
            return timestamp_ms, -1, "", -1
        return timestamp_ms, *self._position(source, offset)


def _with_published(update: Update, at_ms: int) -> Update:
    """Return an update with a note of the instant at which it was published here, or arrived here."""
    return update._replace(headers=update.headers + pack_headers([(PUBLISHED_MS, b"%d" % at_ms)]))


def _is_removal_later(tombstone: Tombstone, update: Update, origin: Origin) -> bool:
    """Return whether a removal is later than a replicated update of its key that came another way."""
    if tombstone.replicated_ms != update.timestamp_ms:
        return tombstone.replicated_ms > update.timestamp_ms
    publisher = publisher_of(tombstone.path) or origin.target
    if publisher == origin.publisher:
        # A delete is always later than what it deleted, so what has its timestamp came after it.
        return tombstone.position is not None and origin.position is not None and tombstone.position >= origin.position
    return bool(publisher) and publisher > origin.publisher
