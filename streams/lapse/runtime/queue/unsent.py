"""Takes back deliveries under a lease that were journaled and certainly never sent, so that they do not count (C55).

The journal has such a step as any other. A replay cannot know how slow Kafka was, so the places are also noted among
the step's instants (X10).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lapse.core.queue.change import join_places
from lapse.core.queue.delivery.handed_out import Unsent
from lapse.core.queue.shard import QueueShard
from lapse.runtime.queue.in_flight import QueueStepInFlight
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.unwritten import Row, take
from lapse.runtime.shard.sent_log import AT_START

if TYPE_CHECKING:
    from lapse.runtime.kafka.record_batch import Leased  # aiokafka, which not all have

logger = logging.getLogger(__name__)

_WARN_EVERY_S: Final = 60.0
"""How often a shard's log warns of such deliveries, s."""


class UnsentDeliveries:
    """The deliveries of one shard that reach nobody because Kafka is slow.

    Args:
        shard: the shard.
        output: knows the topics and names of subscriptions.
        flight: returns the step in flight.
        now_ms: returns the latest instant that the shard's machine knows, ms since the epoch.
    """

    def __init__(
        self,
        shard: QueueShard,
        output: QueueOutput,
        flight: Callable[[], QueueStepInFlight],
        now_ms: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._output = output
        self._flight = flight
        self._now_ms = now_ms
        self._unreported = 0
        self._warned_at = -_WARN_EVERY_S

    @property
    def step(self) -> int:
        """The number that the step in flight gets in the journal."""
        return self._shard.state.sequence

    def take_back(self, batches: Iterable[Leased], where: str) -> None:
        """See `TakesBack.take_back`."""
        names = {self._output.address(one.id): one.id for one in self._shard.subscriptions()}
        unsent = [
            Unsent(names[address], source, partition, offset, count)
            for topic, (name, source, partition, offset, count) in _rows(batches)
            if (address := (topic, name.decode())) in names
        ]
        places = self._shard.handed_out.places_of_unsent(unsent)
        for first, count in join_places(places):
            self._flight().instants[f"{where}:{first}"] = count
        self._undo(places, where)
        self._warn(len(places))

    def repeat(self, instants: Mapping[str, int], where: str) -> None:
        """Take back the deliveries that a recorded step took back at this point."""
        noted = [(name.rpartition(":"), count) for name, count in instants.items()]
        ranges = [(int(first), count) for (point, _, first), count in noted if point == where]
        self._undo(sorted(place for first, count in ranges for place in range(first, first + count)), where)

    def _undo(self, places: Sequence[int], where: str) -> None:
        handed_out = self._shard.handed_out
        if where == AT_START:
            handed_out.take_back(places)
        else:
            handed_out.take_back_unsent(places, self._now_ms(), self._flight().core)

    def _warn(self, count: int) -> None:
        self._unreported += count
        now_s, settings = time.monotonic(), self._shard.settings
        if self._unreported and now_s - self._warned_at >= _WARN_EVERY_S:
            logger.warning(
                "%s, partition %d: Kafka was so slow that nine tenths of the lease (%g s) were over before %d "
                "deliveries could be sent. They do not count, and their messages are handed out again. "
                "If this goes on, a longer lease_period helps",
                settings.name,
                settings.partition,
                settings.lease_ms / 1000,
                self._unreported,
            )
            self._unreported, self._warned_at = 0, now_s


def _rows(batches: Iterable[Leased]) -> Iterator[tuple[str, Row]]:
    """Yield the deliveries in batches, each with its topic."""
    for batch in batches:
        found: set[Row] = set()
        for record in batch.records():
            take(record, 0, found)
        yield from ((batch.topic, row) for row in sorted(found))
