"""Finds deliveries that the previous owner journaled but did not write, by reading the deliveries topics (C55)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from lapse.core.queue.change import Change
from lapse.core.queue.delivery.handed_out import released_message
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Messages, Step
from lapse.protocol import codec, header, packed_delivery, reference
from lapse.protocol.bookmark import Bookmark
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.records import records_of
from lapse.runtime.shard.log import Log
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

REACHED: Final = "reached"
"""Fact of a release: an owner has written the barrier to a subscription, as far as can be known."""

_AT_ONCE: Final = 10_000
"""About how many offsets are read at a time."""

_MOST_REFERRED: Final = 1 << 20
"""More messages than any delivery by reference has."""

Row = tuple[bytes, str, int, int, int]
"""One delivered message: subscription as clients know it, topic, partition, offset, delivery count."""


class Noted(NamedTuple):
    """What the journal says of deliveries.

    Attributes:
        step: number of the first step whose deliveries may be missing.
        floors: for each deliveries topic, an offset at or below its first record of that step.
    """

    step: int
    floors: Mapping[str, int]


def parse_noted(facts: Mapping[str, Any] | None) -> Noted | None:
    """Read the journal's note; return None if there is none."""
    return None if facts is None else Noted(int(facts["step"]), facts["from"])


Read = Callable[[], Awaitable["Written"]]
"""Reads the deliveries that were written."""


class Written:
    """The deliveries that were found in the deliveries topics of a shard.

    Attributes:
        rows: the deliveries, by topic. Nothing is known of a topic without an entry.
    """

    def __init__(self) -> None:
        self.rows: dict[str, set[Row]] = {}

    def missing(self, topic: str, subscription: str, messages: Messages) -> list[int]:
        """Return the indexes of messages that a deliveries topic certainly does not contain."""
        rows = self.rows.get(topic)
        if rows is None:
            return []
        name, source = subscription.encode(), (messages.topic, messages.partition)
        offsets, counts = messages.offsets.tolist(), messages.deliveries.tolist()
        return [
            at
            for at, (offset, count) in enumerate(zip(offsets, counts, strict=True))
            if (name, *source, offset, count) not in rows
        ]


class JournaledDeliveries:
    """Deliveries that the previous owner journaled for clients, as the journal still has them.

    Args:
        shard: the shard.
        changes: the changes of the deliveries, each with the number of its step.
        output: turns deliveries into records, and knows the topics of subscriptions.
        payloads: the records behind the messages.
        released: barriers of the last step, which may not have been sent (C35).

    Attributes:
        has_found: whether some deliveries were not written.
        released: barriers that the first step must repeat.
    """

    def __init__(
        self,
        shard: QueueShard,
        changes: Sequence[tuple[int, Change]],
        output: QueueOutput,
        payloads: PayloadWindow,
        released: Sequence[Change] = (),
    ) -> None:
        self.has_found = False
        self.released: Sequence[Change] = released
        self._shard = shard
        self._changes = changes
        self._output = output
        self._payloads = payloads

    async def unwritten(
        self, noted: Noted, read: Read, receivers: Collection[str], now_ms: int, step: Step
    ) -> list[tuple[Output | Packed, int]]:
        """Return the missing deliveries, with the same counts and leases. Take back those that would come too late.

        Each comes with the end of its lease, ms since the epoch; 0 without one.

        Barriers of the same step come first, because nothing behind a barrier is delivered before it (Q12). Call this
        before the take-over is durable, and write the result before that, too.

        Args:
            noted: the journal's note on deliveries.
            read: reads the deliveries that were written since.
            receivers: subscriptions that may still get something.
            now_ms: the instant, ms since the epoch.
            step: gets the barriers that leave.
        """
        read = _once(read)
        await self._give_up_barriers(noted, read, now_ms, step)
        changes, self._changes = self._changes, ()
        held = [
            (delivery, places)
            for delivery, places in self._shard.handed_out.deliveries(
                change for sequence, change in changes if sequence >= noted.step
            )
            if delivery.subscription in receivers
        ]
        if not held:
            return []
        written = await read()
        found: list[Delivery] = []
        for delivery, places in held:
            at = written.missing(*self._output.address(delivery.subscription), delivery.messages)
            if over := self._over(delivery, at, now_ms):
                self._shard.handed_out.take_back([places[one] for one in over])
                at = [one for one in at if one not in over]
            if at:
                found.append(replace(delivery, messages=delivery.messages.select(np.array(at, np.intp))))
        self.has_found = bool(found)
        if found:
            settings, count = self._shard.settings, sum(len(one.messages) for one in found)
            logger.info(
                "%s, partition %d: %d deliveries were journaled and not written",
                settings.name,
                settings.partition,
                count,
            )
            found = [*self._barriers(receivers), *found]
        return [(await self._packed(delivery), 0 if delivery.barrier else delivery.until_ms) for delivery in found]

    async def _packed(self, delivery: Delivery) -> Output | Packed:
        if delivery.payload == "reference" and not delivery.barrier:
            return self._output.reference(delivery)
        return self._output.deliveries(delivery, await records_of(delivery.messages, self._payloads))

    def _over(self, delivery: Delivery, at: Sequence[int], now_ms: int) -> set[int]:
        """Return the indexes of messages for which it is too late: their lease is over, or they have expired (L10)."""
        if 0 < delivery.until_ms <= now_ms:
            return set(at)
        deadlines_ms = delivery.messages.deadlines_ms
        if deadlines_ms is None or not self._shard.settings.expiration.enabled:
            return set()
        return {one for one in at if deadlines_ms[one] <= now_ms}

    async def _give_up_barriers(self, noted: Noted, read: Read, now_ms: int, step: Step) -> None:
        """Let barriers leave whose records Kafka removed before any client got them (C40); all others are repeated."""
        kept: list[Change] = []
        last_step = self._shard.state.sequence - 1
        for change in self.released:
            message = released_message(change)
            (record,) = await records_of(message, self._payloads)
            # Only the journal of an earlier owner says what that owner has written. So the fact goes on in this
            # journal.
            reached = change.facts.get(REACHED) or noted.step > last_step
            if not reached:
                written, receivers = await read(), change.facts["receivers"]
                missing = (written.missing(*self._output.address(one), message) for one in receivers)
                reached = not (receivers and all(missing))
            if reached:
                change.facts[REACHED] = True
            if record is not None:
                kept.append(change)
            elif not reached:
                self._shard.handed_out.remove_unreached_barrier(change, now_ms, step)
        self.released = kept

    def _barriers(self, receivers: Collection[str]) -> list[Delivery]:
        """Return barriers of the last step for subscriptions that still exist, and do not repeat them again."""
        step = Step()
        for change in self.released:
            self._shard.repeat_barrier(change, step)
        self.released = ()
        return [delivery for delivery in step.deliveries if delivery.subscription in receivers]


def _once(read: Read) -> Read:
    """Return a function that reads at its first call only, and returns that result from then on."""
    found: list[Written] = []

    async def written() -> Written:
        if not found:
            found.append(await read())
        return found[0]

    return written


async def read_written(reader: Log, noted: Noted, topics: Iterable[str], partition: int) -> Written:
    """Return the deliveries since a step, without topics of which Kafka has removed a part of them."""
    written = Written()
    tps = [TP(topic, partition) for topic in topics if topic in noted.floors]
    begins, ends = await reader.begins(tps), await reader.ends(tps)
    for tp in tps:
        if begins[tp] <= noted.floors[tp.topic] < ends[tp]:
            rows = await _read(reader, tp, noted.floors[tp.topic], ends[tp])
            if rows is not None:
                written.rows[tp.topic] = rows
            await reader.release(*tp)
    return written


async def _read(reader: Log, tp: TP, first: int, end: int) -> set[Row] | None:
    """Read a range of a deliveries topic; return None if it cannot be read any more."""
    rows: set[Row] = set()
    epoch = 0
    while first < end:
        records = await reader.read(*tp, first, min(first + _AT_ONCE, end) - 1)
        if not records:
            return None
        try:
            for record in records:
                epoch = take(record, epoch, rows)
        except packed_delivery.UnknownVersion:
            return None
        first = records[-1].offset + 1
    return rows


def take(record: Any, epoch: int, rows: set[Row]) -> int:
    """Note the deliveries in a record of a deliveries topic; return the highest epoch so far.

    Clients ignore records of a lower epoch behind a higher one, so these do not count.
    """
    fields: dict[str, bytes] = {name: value for name, value in reversed(record.headers) if value is not None}
    written = header.epoch_of(fields)
    if written < epoch:
        return epoch
    kind, name = fields.get(header.KIND), fields.get(header.SUBSCRIPTION, b"")
    if kind in (b"delivery", b"barrier"):
        with contextlib.suppress(ValueError):  # a record that lapse did not write
            bookmark = Bookmark.parse(fields.get(header.BOOKMARK, b"").decode())
            rows.add((name, *bookmark, int(fields.get(header.DELIVERY_COUNT, b""))))
    elif kind == reference.KIND:
        rows.update(_referred(name, record.value or b""))
    elif kind == packed_delivery.KIND:
        rows.update(_packed(name, record.value or b""))
    return written


def _referred(name: bytes, value: bytes) -> Iterable[Row]:
    try:
        found = reference.decode(value)
    except codec.CodecError:
        return []  # unreadable, so no client has these messages
    if sum(max(0, some.last - some.first) for some in found.ranges) > _MOST_REFERRED:
        return []  # not written by a shard
    return [
        (name, found.topic, found.partition, offset, some.delivery_count or 0)
        for some in found.ranges
        for offset in range(some.first, some.last + 1)
    ]


def _packed(name: bytes, value: bytes) -> Iterable[Row]:
    try:
        found = packed_delivery.decode(value)
    except packed_delivery.UnknownVersion:
        raise
    except codec.CodecError:
        return []  # unreadable, so no client has these messages
    return [
        (name, found.topic, found.partition, offset, count)
        for offset, count in zip(found.offsets, found.delivery_counts, strict=True)
    ]
