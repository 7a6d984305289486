"""Deliveries that an owner journaled but did not write: the next owner finds them by reading the topic (C55)."""

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
"""Among the facts of a release: whether an owner has written the barrier for somebody, as far as can be known."""

_AT_ONCE: Final = 10_000
_MOST_REFERRED: Final = 1 << 20
"""More messages than any delivery by reference has."""

"""About how many offsets are read at a time."""

Row = tuple[bytes, str, int, int, int]
"""One delivered message: subscription as clients know it, topic, partition, offset, delivery count."""


class Noted(NamedTuple):
    """What the journal says of deliveries.

    Attributes:
        step: sequence of the first step whose deliveries are not known to be safe.
        floors: of each deliveries topic an offset at or below its first record of that step.
    """

    step: int
    floors: Mapping[str, int]


def noted_of(facts: Mapping[str, Any] | None) -> Noted | None:
    """Read what the journal holds; None if it says nothing."""
    return None if facts is None else Noted(int(facts["step"]), facts["from"])


Read = Callable[[], Awaitable["Written"]]
"""Reads what was written."""


class Written:
    """What stands in the deliveries topics of a shard for clients.

    Attributes:
        rows: the deliveries, by topic; of a topic that is not in it, nothing is known.
    """

    def __init__(self) -> None:
        self.rows: dict[str, set[Row]] = {}

    def missing(self, topic: str, subscription: str, messages: Messages) -> list[int]:
        """Which of some messages a deliveries topic provably does not hold, by their indexes."""
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
    """Deliveries that the owner before journaled for clients, as the journal still has them.

    Args:
        shard: whose they are.
        changes: what they were, each with the sequence of its step.
        output: writes them, and knows where subscriptions are spoken to.
        payloads: the records behind the messages.
        released: barriers of the last step, which may not have been sent (C35).

    Attributes:
        has_found: whether some were not written.
        released: barriers that the first step has to repeat.
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
    ) -> list[Output | Packed]:
        """Those that were not written, with the same counts and leases; what nobody saw in time does not count.

        Barriers of the same step come first, because nothing behind a barrier is delivered before it (Q12). Call it
        before the take-over, and write them before that is durable.

        Args:
            noted: what the journal says of deliveries.
            read: reads what was written since.
            receivers: subscriptions to which something may be written.
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
                self._shard.handed_out.take_back(places[one] for one in over)
                at = [one for one in at if one not in over]
            if at:
                found.append(replace(delivery, messages=delivery.messages.some(np.array(at, np.intp))))
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
        return [
            self._output.reference(delivery)
            if delivery.payload == "reference" and not delivery.barrier
            else self._output.deliveries(delivery, await records_of(delivery.messages, self._payloads))
            for delivery in found
        ]

    def _over(self, delivery: Delivery, at: Sequence[int], now_ms: int) -> set[int]:
        """Which of some messages nobody gets by it any more: its lease is over, or they have expired (L10)."""
        if 0 < delivery.until_ms <= now_ms:
            return set(at)
        deadlines_ms = delivery.messages.deadlines_ms
        if deadlines_ms is None or not self._shard.settings.expiration.enabled:
            return set()
        return {one for one in at if deadlines_ms[one] <= now_ms}

    async def _give_up_barriers(self, noted: Noted, read: Read, now_ms: int, step: Step) -> None:
        """Let barriers leave whose records Kafka removed before anybody got them (C40); all others are repeated."""
        kept: list[Change] = []
        last_step = self._shard.state.sequence - 1
        for change in self.released:
            message = released_message(change)
            (record,) = await records_of(message, self._payloads)
            # What an earlier owner has written is told by its own journal only: it has to go on in this one's.
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
                self._shard.handed_out.unreached(change, now_ms, step)
        self.released = kept

    def _barriers(self, receivers: Collection[str]) -> list[Delivery]:
        """Barriers of the last step, to who is still there; they are not repeated once more after that."""
        step = Step()
        for change in self.released:
            self._shard.repeat(change, step)
        self.released = ()
        return [delivery for delivery in step.deliveries if delivery.subscription in receivers]


def _once(read: Read) -> Read:
    """The same, which reads when it is asked first."""
    found: list[Written] = []

    async def written() -> Written:
        if not found:
            found.append(await read())
        return found[0]

    return written


async def read_written(reader: Log, noted: Noted, topics: Iterable[str], partition: int) -> Written:
    """Read what was written since a step; where Kafka has removed some of it, nothing is known of that topic."""
    written = Written()
    places = [TP(topic, partition) for topic in topics if topic in noted.floors]
    begins, ends = await reader.begins(places), await reader.ends(places)
    for place in places:
        if begins[place] <= noted.floors[place.topic] < ends[place]:
            rows = await _read(reader, place, noted.floors[place.topic], ends[place])
            if rows is not None:
                written.rows[place.topic] = rows
            await reader.release(*place)
    return written


async def _read(reader: Log, place: TP, first: int, end: int) -> set[Row] | None:
    """What stands in a part of a deliveries topic; None if it cannot be read any more."""
    rows: set[Row] = set()
    epoch = 0
    while first < end:
        records = await reader.read(*place, first, min(first + _AT_ONCE, end) - 1)
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
    """Note what a record of a deliveries topic hands out; returns the highest epoch so far.

    What a lower epoch wrote behind a higher one is void to clients, and does not count.
    """
    fields: dict[str, bytes] = {name: value for name, value in reversed(record.headers) if value is not None}
    written = header.epoch_of(fields)
    if written < epoch:
        return epoch
    kind, name = fields.get(header.KIND), fields.get(header.SUBSCRIPTION, b"")
    if kind in (b"delivery", b"barrier"):
        with contextlib.suppress(ValueError):  # somebody else's record is no delivery
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
        return []  # nobody can read it; so nobody has what it hands out
    if sum(max(0, some.last - some.first) for some in found.ranges) > _MOST_REFERRED:
        return []  # no shard has written it
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
        return []  # nobody can read it; so nobody has what it hands out
    return [
        (name, found.topic, found.partition, offset, count)
        for offset, count in zip(found.offsets, found.delivery_counts, strict=True)
    ]
