"""The state of a SOW shard, and `apply`, the only way in which it changes, live and in recovery."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Protocol

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, emptying, in_lots
from lapse.core.repeats import Batch, Repeats, chunk_of
from lapse.core.shard.activity import USED, Used
from lapse.core.shard.retirement import RETIREMENT, Retirement
from lapse.core.sow import journal
from lapse.core.sow.expiry import DeadlineIndex
from lapse.core.sow.hash_index import HashIndex
from lapse.core.sow.record import HEAD, Facts, deadline_of, pack
from lapse.core.sow.record_names import RecordNames
from lapse.core.sow.select import Select
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.step import Step
from lapse.core.sow.subscription import Subscriber, Subscription, predicates
from lapse.core.sow.tombstone import Tombstone
from lapse.core.sow.version import Schedule, Version
from lapse.core.sow.view import View
from lapse.protocol.bookmark import Bookmark

RECORD_BYTES = 16
"""What a journal record takes besides key and value, about."""

_LOT: Final = 1_024
"""How many records are taken over in a portion."""

_INDEXED_LOT: Final = 64
"""How many are indexed in a portion: each payload is decoded."""

_SOURCE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


def _rank(item: tuple[bytes, bytes | None]) -> tuple[bool, bytes]:
    journal_key = item[0]
    return journal_key[:1] != journal.SOURCE, journal_key if journal_key[:1] == journal.IDS else b""


def _reading(subscription: Subscription) -> tuple[object, ...]:
    """What decides how a subscription reads records."""
    return subscription.filter, subscription.row_filter, subscription.select


class Snapshot(Protocol):
    """A reader that shows records as they were at an instant."""

    def preserve(self, journal_key: bytes, entry: bytes | None) -> None:
        """Note a record before it changes; None = there is none."""


class SowState:
    """The state of one shard.

    Attributes:
        entries: packed records by journal key.
        record_names: a list of their names, for walks through all records.
        snapshots: running queries, which show the records as they were at the beginning.
        deadlines: the index of deadlines; empty while expiration is disabled.
        schedule: scheduled versions.
        tombstones: of deleted records, by the record's journal key.
        pending: packed letters that the broker refuses, by their journal key (C27).
        repeats: message ids that were seen within the window (X6).
        replicated: whether an update of another deployment has come (S10).
        subscribers: by the subscription's id.
        sources: topic and partition by the source's number.
        sequence: number of the last update.
        retirement: the state of the topic's end; None = in service (C4).
        used: when the shard of a temporary topic was last used, as far as that is journaled (Q18).
        now_ms: the latest instant that the shard knows, ms since the epoch; not journaled.
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
        self.used: Used | None = None
        self.now_ms = -1

    @property
    def remembers(self) -> bool:
        """Whether every removed key is remembered, because older updates of other deployments may come (C56)."""
        return self.replicated or self.settings.remembers_removed

    def change(self, step: Step, journal_key: bytes, value: bytes | None) -> None:
        """Add a change to the step, and apply it."""
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
        """The same as `change` for a packed record, with facts that would otherwise have to be unpacked.

        Args:
            journal_key: the key of its journal record.
            entry: the record.
            deadline_ms: its deadline, ms since the epoch.
            before_ms: the deadline of the record that it replaces; `NEVER` if there is none.
            sequence: its number.
            is_new: whether there is none.
            step: gets the change.
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
        """Whether `put_many` may be used: nobody has to look at each change."""
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
        """The same as `put` for each of many records, numbered behind the last; where `takes_many`.

        Args:
            journal_keys: the keys of their journal records, each once.
            entries: the records.
            new: the names of which there was none.
            earlier: names whose deadline is before that of the record that was there, and that deadline, ms.
            change_bytes: the size of the changes, about.
            step: gets the changes.
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
        """The same as `change` to None for each of many records that are there."""
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
        """Apply one change: a journal key, and its value or None for a tombstone."""
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
            # A tombstone that is dug again is the youngest.
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
        """Take over from the journal's latest value per key; the state must be new.

        The same as `apply` for each, only that the indexes over the records are built once at the end.
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
        # Sources first: the order of scheduled versions is that of their bookmarks. Message ids in the order they came.
        others.sort(key=_rank)
        for some in in_lots(others):
            for journal_key, value in some:
                self.apply(journal_key, value)
            yield
        since = (subscriber.subscription.since for subscriber in self.subscribers.values())
        self.sequence = max(chain((sequence,), since))
        self.record_names.rewrite()
        if self.settings.expiration.enabled:
            yield from self.deadlines.rebuilding()
        if self._indexed:
            for lot in in_lots(entries.items(), _INDEXED_LOT):
                for journal_key, entry in lot:
                    self.hash_index.put(journal_key, self.view(journal_key, entry).payload)
                yield

    def emptying(self) -> Portions[None]:
        """Free the large parts of the state, in portions; nothing is needed any more."""
        yield from self.hash_index.emptying()
        yield from self.repeats.emptying()
        yield from emptying(self.entries, self.tombstones, self.pending)

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
        if known is not None and _reading(known.subscription) == _reading(subscription):
            known.subscription = subscription
            return
        fault = ""
        try:
            compiled = predicates(subscription.filter, subscription.row_filter, self.settings.compile_filter)
            select = Select.parse(subscription.select)
        except ValueError as error:  # compiled once: only another version of the language can refuse it
            compiled, select, fault = (), None, str(error)
        self.subscribers[subscription_id] = Subscriber(subscription, compiled, self.now_ms, select=select, fault=fault)

    def _apply_ending(self, prefix: bytes, value: bytes | None) -> None:
        if prefix == RETIREMENT:
            self.retirement = None if value is None else Retirement.decode(value)
        else:
            self.used = None if value is None else Used.decode(value)

    def _apply_source(self, number: int, value: bytes | None) -> None:
        assert value is not None, "sources are never forgotten"
        topic, _, partition = value.decode().partition("\0")
        # A compacted journal may hand them over in any order.
        self.sources.extend([("", -1)] * (number + 1 - len(self.sources)))
        self.sources[number] = (topic, int(partition))
        # The latest bears the name: the topic of an earlier one was deleted (C42).
        self._source_numbers[self.sources[number]] = max(number, self._source_numbers.get(self.sources[number], -1))

    def source(self, topic: str, partition: int, step: Step) -> int:
        """Return the number of an underlying partition; a new one is journaled."""
        number = self._source_numbers.get((topic, partition))
        return self._new_source(topic, partition, step) if number is None else number

    def replace_sources(self, topic: str, step: Step) -> None:
        """Give the partitions of a topic that was created again new numbers (C42)."""
        for name, partition in [source for source in self._source_numbers if source[0] == topic]:
            self._new_source(name, partition, step)

    def _new_source(self, topic: str, partition: int, step: Step) -> int:
        number = len(self.sources)
        self.change(step, journal.SOURCE + _SOURCE.pack(number), f"{topic}\0{partition}".encode())
        return number

    def identify(self, batch: Batch, source: int, newest_ms: int, window_ms: int, step: Step) -> None:
        """Remember the ids of a batch; forget those out of the window at the source's latest stamp (X6)."""
        repeats = self.repeats
        for number in list(repeats.outdated(source, newest_ms, window_ms)):
            self.change(step, journal.IDS + _NUMBER.pack(number), None)
        if batch.fresh:
            journal_key = journal.IDS + _NUMBER.pack(repeats.next_number)
            self.change(step, journal_key, json.dumps(batch.chunk()).encode())

    def known_source(self, topic: str, partition: int) -> int | None:
        """Return the number of an underlying partition that this shard has read; None of another."""
        return self._source_numbers.get((topic, partition))

    def bookmark(self, source: int, offset: int) -> Bookmark:
        """Return the bookmark of an offset of a source."""
        return Bookmark(*self.sources[source], offset)

    def view(self, journal_key: bytes, entry: bytes) -> View:
        """Return what filters and subscribers see of a packed record."""
        return View(journal_key, entry, self.sources, self.settings.parse)

    def view_of_version(self, version: Version) -> View:
        """Return what a filter sees of a scheduled version: the version alone, without the stored record (C82)."""
        facts = Facts(
            version.deadline_ms, version.timestamp_ms, -1, version.offset, version.source, len(version.headers)
        )
        return self.view(journal.RECORD + version.key, pack(facts, version.headers, version.payload or b""))

    def is_due(self, entry: bytes, at_ms: int) -> bool:
        """Whether a record counts as expired at an instant, ms since the epoch (L10)."""
        return self.settings.expiration.enabled and deadline_of(entry) <= at_ms

    def depth(self, at_ms: int) -> int:
        """How many records there are that have not expired at an instant, ms since the epoch (L10)."""
        return len(self.entries) - (self.deadlines.count_due(at_ms) if self.settings.expiration.enabled else 0)
