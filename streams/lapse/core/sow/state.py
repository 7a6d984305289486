"""The state of a SOW shard, and `apply`, the only function that changes it, in operation and in recovery."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Protocol

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, clear_in_portions, in_lots
from lapse.core.repeats import Batch, Repeats, chunk_of
from lapse.core.shard.activity import USED, LastUse
from lapse.core.shard.retirement import RETIREMENT, Retirement
from lapse.core.sow import journal
from lapse.core.sow.query.hash_index import HashIndex
from lapse.core.sow.query.select import Select
from lapse.core.sow.query.view import View
from lapse.core.sow.records.record import HEAD, Facts, deadline_of, pack
from lapse.core.sow.records.record_names import RecordNames
from lapse.core.sow.removal.expiry import DeadlineIndex
from lapse.core.sow.removal.tombstone import Tombstone
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.step import Step
from lapse.core.sow.subscriptions.subscription import Subscriber, Subscription, predicates
from lapse.core.sow.updates.version import Schedule, Version
from lapse.protocol.bookmark import Bookmark

RECORD_BYTES = 16
"""About the size of a journal record besides key and value, bytes."""

_LOT: Final = 1_024
"""How many records a portion restores."""

_INDEXED_LOT: Final = 64
"""How many records a portion indexes, which decodes each payload."""

_SOURCE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


def _rank(item: tuple[bytes, bytes | None]) -> tuple[bool, bytes]:
    journal_key = item[0]
    return journal_key[:1] != journal.SOURCE, journal_key if journal_key[:1] == journal.IDS else b""


def _visibility_options(subscription: Subscription) -> tuple[object, ...]:
    """Return the values that decide which records and fields a subscription gets."""
    return subscription.filter, subscription.row_filter, subscription.select


class Snapshot(Protocol):
    """A reader of the records as they were at an instant."""

    def preserve(self, journal_key: bytes, entry: bytes | None) -> None:
        """Keep a record before it changes; None = there is none."""


class SowState:
    """The state of one shard.

    Attributes:
        entries: packed records by journal key.
        record_names: the list of their journal keys, for iterations over all records.
        snapshots: plain queries in progress, which show the records as they were at the query's start.
        deadlines: the index of deadlines; empty if expiration is disabled.
        schedule: the scheduled versions.
        tombstones: tombstones of removed records, by the record's journal key.
        pending: packed letters that the broker refuses, by their journal key (C27).
        repeats: message ids that were seen within the window (X6).
        replicated: whether an update of another deployment has arrived (S10).
        subscribers: the subscribers by id of their subscriptions.
        sources: topic and partition by number of the source.
        sequence: number of the last update.
        retirement: the shard's retirement; None = in service (C4).
        used: the journaled last use of a temporary topic; None = none yet (Q18).
        now_ms: the latest known instant, ms since the epoch; not journaled.
    """

    __slots__ = (
        "_acts_on_deadlines",
        "_indexed",
        "_source_numbers",
        "deadlines",
        "entries",
        "hash_index",
        "now_ms",
        "pending",
        "record_names",
        "repeats",
        "replicated",
        "retirement",
        "schedule",
        "sequence",
        "settings",
        "snapshots",
        "sources",
        "subscribers",
        "tombstones",
        "used",
    )

    def __init__(self, settings: SowSettings) -> None:
        self.settings = settings
        self._acts_on_deadlines = settings.expiration.enabled
        self.entries: dict[bytes, bytes] = {}
        self.record_names = RecordNames(self.entries)
        self.snapshots: list[Snapshot] = []
        self.deadlines = DeadlineIndex(self.entries)
        self.tombstones: dict[bytes, Tombstone] = {}
        self.pending: dict[bytes, bytes] = {}
        self.repeats = Repeats()
        self.replicated = False
        self.subscribers: dict[str, Subscriber] = {}
        self.sources: list[tuple[str, int]] = []
        self.schedule = Schedule(settings.expiration.enabled, self.sources)
        self._source_numbers: dict[tuple[str, int], int] = {}
        self.hash_index = HashIndex(settings.hash_index)
        self._indexed = bool(settings.hash_index)
        self.sequence = 0
        self.retirement: Retirement | None = None
        self.used: LastUse | None = None
        self.now_ms = -1

    @property
    def retains_all_deletes(self) -> bool:
        """Whether every removed key gets a tombstone, because older updates of other deployments may arrive (C56)."""
        return self.replicated or self.settings.remembers_removed

    def apply_change(self, step: Step, journal_key: bytes, value: bytes | None) -> None:
        """Apply a change and add it to the step."""
        step.changes[journal_key] = value
        step.change_bytes += (
            len(journal_key) + RECORD_BYTES if value is None else len(journal_key) + len(value) + RECORD_BYTES
        )
        self.apply(journal_key, value)

    def put(
        self,
        journal_key: bytes,
        entry: bytes,
        deadline_ms: int,
        before_ms: int,
        sequence: int,
        is_new: bool,
        step: Step,
    ) -> None:
        """Do the same as `change` for a packed record, given facts that would otherwise have to be unpacked.

        Args:
            journal_key: its journal key.
            entry: the packed record.
            deadline_ms: its deadline, ms since the epoch.
            before_ms: deadline of the record that it replaces, ms since the epoch; `NEVER` without one.
            sequence: number of the update.
            is_new: whether it replaces no record.
            step: receives the change.
        """
        step.changes[journal_key] = entry
        step.change_bytes += len(journal_key) + len(entry) + RECORD_BYTES
        if is_new or deadline_ms < before_ms or self._indexed or self.snapshots:
            self._enter(journal_key, entry, deadline_ms, before_ms, sequence, is_new)
        else:  # nothing changes but the record
            self.entries[journal_key] = entry
            if sequence > self.sequence:
                self.sequence = sequence

    @property
    def takes_many(self) -> bool:
        """Whether `put_many` may be used, because no subscriber, index or query must see each change."""
        return not (self.subscribers or self._indexed or self.snapshots)

    def put_many(
        self,
        journal_keys: Sequence[bytes],
        entries: Sequence[bytes],
        new: Sequence[bytes],
        earlier: Sequence[tuple[bytes, int]],
        change_bytes: int,
        step: Step,
    ) -> None:
        """Do the same as `put` for many records, with consecutive sequences. It requires `takes_many`.

        Args:
            journal_keys: their distinct journal keys.
            entries: the packed records.
            new: journal keys of records that replace none.
            earlier: journal keys whose deadline is earlier than before, with the deadline, ms since the epoch.
            change_bytes: about the size of the changes, bytes.
            step: receives the changes.
        """
        changes = dict(zip(journal_keys, entries, strict=True))
        step.changes.update(changes)
        step.change_bytes += change_bytes
        self.entries.update(changes)
        self.record_names.add_all(new)
        self.sequence += len(journal_keys)
        if earlier and self._acts_on_deadlines:
            self.deadlines.add_all(earlier)

    def drop_all(self, journal_keys: Sequence[bytes], step: Step) -> None:
        """Do the same as `change` to None for many existing records."""
        step.changes.update(dict.fromkeys(journal_keys))
        step.change_bytes += sum(map(len, journal_keys)) + len(journal_keys) * RECORD_BYTES
        if self._indexed:
            for journal_key in journal_keys:
                self.hash_index.discard(journal_key)
        if self.snapshots:
            for journal_key in journal_keys:
                self._preserve(journal_key)
        entries = self.entries
        for journal_key in journal_keys:
            del entries[journal_key]
        self.record_names.discard(journal_keys)

    def apply(self, journal_key: bytes, value: bytes | None) -> None:
        """Apply one change, given its journal key and its value, None for a tombstone."""
        prefix = journal_key[:1]
        if prefix == journal.RECORD:
            self._apply_record(journal_key, value)
        elif prefix == journal.SCHEDULED:
            self.schedule.discard(journal_key)
            if value is not None:
                self.schedule.put(journal_key, Version.unpack(value))
        elif prefix == journal.SUBSCRIPTION:
            self._apply_subscription(journal_key[1:].decode("utf-8", "surrogatepass"), value)
        elif prefix == journal.SOURCE:
            self._apply_source(_SOURCE.unpack_from(journal_key, 1)[0], value)
        elif prefix == journal.TOMBSTONE:
            # A renewed tombstone moves to the end, since it is the youngest.
            self.tombstones.pop(journal.RECORD + journal_key[1:], None)
            if value is not None:
                self.tombstones[journal.RECORD + journal_key[1:]] = Tombstone.unpack(value)
        elif prefix == journal.DYING:
            if value is None:
                self.pending.pop(journal_key, None)
            else:
                self.pending[journal_key] = value
        elif prefix == journal.IDS:
            number = _NUMBER.unpack_from(journal_key, 1)[0]
            if value is None:
                self.repeats.forget(number)
            else:
                self.repeats.add(number, chunk_of(*json.loads(value)))
        elif prefix == journal.REPLICATED:
            self.replicated = value is not None
        elif prefix in (RETIREMENT, USED):
            self._apply_ending(prefix, value)
        elif prefix != journal.RUNTIME:
            raise ValueError(f"a journal record of a kind that this version does not know: {prefix!r}")

    def restoring(self, items: Iterable[tuple[bytes, bytes | None]]) -> Portions[None]:
        """Restore a new state from the journal's latest value of every key.

        The result is the same as with `apply` for each, but the indexes over records are built once, at the end.
        """
        entries = self.entries
        others: list[tuple[bytes, bytes | None]] = []
        sequence = 0
        unpack_from = HEAD.unpack_from
        record_prefix = journal.RECORD[0]
        for some in in_lots(items, _LOT):
            for journal_key, value in some:
                if journal_key[0] == record_prefix and value is not None:
                    entries[journal_key] = value
                    number = unpack_from(value)[2]
                    if number > sequence:
                        sequence = number
                else:
                    others.append((journal_key, value))
            yield
        # Sources come first, since scheduled versions sort by bookmark. Message ids are in the order of arrival.
        others.sort(key=_rank)
        for some in in_lots(others):
            for journal_key, value in some:
                self.apply(journal_key, value)
            yield
        subscriptions = [subscriber.subscription for subscriber in self.subscribers.values()]
        since = (max(one.since, one.unsure) for one in subscriptions)
        self.sequence = max(chain((sequence,), since))
        self.record_names.rewrite()
        if self.settings.expiration.enabled:
            yield from self.deadlines.rebuilding()
        if self._indexed:
            for lot in in_lots(entries.items(), _INDEXED_LOT):
                for journal_key, entry in lot:
                    self.hash_index.put(journal_key, self.view(journal_key, entry).payload)
                yield

    def release_memory(self) -> Portions[None]:
        """Free the large parts of the state, in portions. The state is not used afterwards."""
        yield from self.hash_index.release_memory()
        yield from self.repeats.release_memory()
        yield from clear_in_portions(self.entries, self.tombstones, self.pending)

    def _apply_record(self, journal_key: bytes, entry: bytes | None) -> None:
        if entry is not None:
            deadline_ms, _, sequence, _, _, _ = HEAD.unpack_from(entry)
            before = self.entries.get(journal_key)
            self._enter(
                journal_key,
                entry,
                deadline_ms,
                NEVER if before is None else deadline_of(before),
                sequence,
                before is None,
            )
            return
        if self._indexed:
            self.hash_index.discard(journal_key)
        if journal_key in self.entries:
            if self.snapshots:
                self._preserve(journal_key)
            del self.entries[journal_key]
            self.record_names.discard((journal_key,))

    def _enter(
        self, journal_key: bytes, entry: bytes, deadline_ms: int, before_ms: int, sequence: int, is_new: bool
    ) -> None:
        if self._indexed:
            self.hash_index.discard(journal_key)
            self.hash_index.put(journal_key, self.view(journal_key, entry).payload)
        if self.snapshots:
            self._preserve(journal_key)
        self.entries[journal_key] = entry
        if is_new:
            self.record_names.add(journal_key)
        if sequence > self.sequence:
            self.sequence = sequence
        if deadline_ms < before_ms and self._acts_on_deadlines:
            self.deadlines.add(journal_key, deadline_ms, before_ms)

    def _preserve(self, journal_key: bytes) -> None:
        """Keep a record for the snapshots before it changes."""
        entry = self.entries.get(journal_key)
        for snapshot in self.snapshots:
            snapshot.preserve(journal_key, entry)

    def _apply_subscription(self, subscription_id: str, value: bytes | None) -> None:
        if value is None:
            self.subscribers.pop(subscription_id, None)
            return
        subscription = Subscription.unpack(value)
        known = self.subscribers.get(subscription_id)
        if known is not None and _visibility_options(known.subscription) == _visibility_options(subscription):
            known.subscription = subscription
            return
        fault = ""
        try:
            compiled = predicates(subscription.filter, subscription.row_filter, self.settings.compile_filter)
            select = Select.parse(subscription.select)
        except ValueError as error:  # it was compiled before, so only a changed expression language can refuse it
            compiled, select, fault = (), None, str(error)
        self.subscribers[subscription_id] = Subscriber(subscription, compiled, self.now_ms, select=select, fault=fault)

    def _apply_ending(self, prefix: bytes, value: bytes | None) -> None:
        if prefix == RETIREMENT:
            self.retirement = None if value is None else Retirement.decode(value)
        else:
            self.used = None if value is None else LastUse.decode(value)

    def _apply_source(self, number: int, value: bytes | None) -> None:
        assert value is not None, "sources are never forgotten"
        topic, _, partition = value.decode().partition("\0")
        # A compacted journal may contain them in any order.
        self.sources.extend([("", -1)] * (number + 1 - len(self.sources)))
        self.sources[number] = (topic, int(partition))
        # The source with the highest number is current. The topic of an earlier one was deleted (C42).
        self._source_numbers[self.sources[number]] = max(number, self._source_numbers.get(self.sources[number], -1))

    def source(self, topic: str, partition: int, step: Step) -> int:
        """Return the number of an underlying partition, journaling a new one."""
        number = self._source_numbers.get((topic, partition))
        return self._new_source(topic, partition, step) if number is None else number

    def replace_sources(self, topic: str, step: Step) -> None:
        """Give the partitions of a topic that was created again new numbers (C42)."""
        for name, partition in [source for source in self._source_numbers if source[0] == topic]:
            self._new_source(name, partition, step)

    def _new_source(self, topic: str, partition: int, step: Step) -> int:
        number = len(self.sources)
        self.apply_change(step, journal.SOURCE + _SOURCE.pack(number), f"{topic}\0{partition}".encode())
        return number

    def remember_ids(self, batch: Batch, source: int, reached_ms: int, window_ms: int, step: Step) -> None:
        """Remember the ids of a batch, and forget those outside the window, as far as the source has come (X6)."""
        repeats = self.repeats
        for number in list(repeats.outdated(source, reached_ms, window_ms)):
            self.apply_change(step, journal.IDS + _NUMBER.pack(number), None)
        if batch.fresh:
            journal_key = journal.IDS + _NUMBER.pack(repeats.next_number)
            self.apply_change(step, journal_key, json.dumps(batch.chunk(reached_ms)).encode())

    def find_source(self, topic: str, partition: int) -> int | None:
        """Return the number of an underlying partition; None if this shard has not read it."""
        return self._source_numbers.get((topic, partition))

    def incarnation(self, source: int | None) -> int:
        """Return how many earlier topics had the name of a source's topic (C42), as far as this shard has read them."""
        return 0 if source is None else self.sources[:source].count(self.sources[source])

    def bookmark(self, source: int, offset: int) -> Bookmark:
        """Return the bookmark of an offset of a source."""
        return Bookmark(*self.sources[source], offset)

    def view(self, journal_key: bytes, entry: bytes) -> View:
        """Return a packed record as filters and subscribers see it."""
        return View(journal_key, entry, self.sources, self.settings.parse)

    def view_of_version(self, version: Version) -> View:
        """Return a scheduled version as filters see it: the version alone, without the stored record (C82)."""
        facts = Facts(
            version.deadline_ms, version.timestamp_ms, -1, version.offset, version.source, len(version.headers)
        )
        return self.view(journal.RECORD + version.key, pack(facts, version.headers, version.payload or b""))

    def is_due(self, entry: bytes, at_ms: int) -> bool:
        """Return whether a record has expired at an instant, ms since the epoch (L10)."""
        return self.settings.expiration.enabled and deadline_of(entry) <= at_ms

    def depth(self, at_ms: int) -> int:
        """Return how many records have not expired at an instant, ms since the epoch (L10)."""
        return len(self.entries) - (self.deadlines.count_due(at_ms) if self.settings.expiration.enabled else 0)
