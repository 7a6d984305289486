"""A subscription to a queue shard (Q3, Q5, C20)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

_SERIES_LEASES: Final = 2
"""How many lease periods may lie between two ends of leases of one series."""

_TRAVELLING_SERIES_LEASES: Final = 64
"""The same where the subscription's places in the backlog travel between shards, so that a shard sees few ends."""

Payload = Literal["inline", "packed", "reference"]
"""How messages are written to a subscription: each in a record, many in a record, or by bookmark only."""


@dataclass(slots=True)
class EndedLeases:
    """Leases of a subscription that ended one after the other, while it settled and renewed nothing (Q15).

    Attributes:
        first_ms: when the first of them ended, ms since the epoch.
        last_ms: when the last of them ended, ms since the epoch.
        settled: the subscription's `settled` at each of these ends.
    """

    first_ms: int
    last_ms: int
    settled: int


@dataclass(slots=True)
class Subscription:
    """One client's standing request to receive messages of one shard.

    Attributes:
        id: its name on the wire.
        number: its number in the columns of segments, never reused.
        client: the client's name for people.
        max_backlog: most unsettled deliveries at once; 0 = barriers only.
        asked_backlog: the backlog that the client asked for, before the queue's cap.
        heartbeat_timeout_ms: silence after which it is lost, ms.
        filter: content filter; empty = all messages.
        last_seen_ms: instant of its last command, ms since the epoch.
        outstanding: number of unsettled deliveries.
        payload: how its deliveries are written.
        row_filter: its user's row filter, which `filter` includes; empty = all (X4).
        began_ms: instant of its first subscribe, ms since the epoch.
        lost: whether its consumer is lost, and its end was not journaled before a crash. It ends at `lost_at_ms` (C5).
        settled: number of leases settled or renewed since the take-over; not journaled.
        ended: its leases that ended unsettled since then; not journaled.
        travels: whether its backlog here was ever made smaller, since the take-over; then the client moves the places
            between shards. Not journaled.
        idle_until_ms: the last instant at which it had nothing to settle, or settled something, ms since the epoch;
            noted under at-most-once only. Not journaled.
    """

    id: str
    number: int
    client: str
    max_backlog: int
    asked_backlog: int
    heartbeat_timeout_ms: int
    filter: str = ""
    last_seen_ms: int = 0
    outstanding: int = 0
    payload: Payload = "inline"
    row_filter: str = ""
    began_ms: int = 0
    lost: bool = False
    settled: int = field(default=0, compare=False)
    ended: EndedLeases | None = field(default=None, compare=False)
    travels: bool = field(default=False, compare=False)
    idle_until_ms: int = field(default=0, compare=False)

    @property
    def space(self) -> int:
        """How many more deliveries it can get now."""
        return self.max_backlog - self.outstanding if self.outstanding < self.max_backlog else 0

    @property
    def lost_at_ms(self) -> int:
        """Instant at which it is lost unless heard of before, ms since the epoch."""
        return self.last_seen_ms + self.heartbeat_timeout_ms

    def note_ended_leases(self, settled: int, now_ms: int, lease_ms: int) -> None:
        """Note that some of its leases ended unsettled.

        Args:
            settled: its `settled` before they ended; the end of a lease does not count.
            now_ms: when they ended, ms since the epoch.
            lease_ms: the queue's lease period, ms; ends that are too far apart begin a new series.
        """
        self.settled = settled
        apart_ms = self._series_leases * lease_ms
        if self.ended is None or self.ended.settled != settled or now_ms - self.ended.last_ms > apart_ms:
            self.ended = EndedLeases(now_ms, now_ms, settled)
        self.ended.last_ms = now_ms

    def take_over_from(self, earlier: Subscription) -> None:
        """Go on with what another subscription of the same id has out, and with what is known of its consumer."""
        self.outstanding = earlier.outstanding
        self.settled, self.ended, self.idle_until_ms = earlier.settled, earlier.ended, earlier.idle_until_ms
        self.travels = earlier.travels or self.max_backlog < earlier.max_backlog

    @property
    def _series_leases(self) -> int:
        return _TRAVELLING_SERIES_LEASES if self.travels else _SERIES_LEASES

    def hangs_since_ms(self, now_ms: int, lease_ms: int) -> int:
        """Return since when it hangs, ms since the epoch; 0 = it does not (Q15).

        It hangs if its leases have ended for a lease period or longer, while it settled and renewed nothing. A slow
        consumer settles or renews something in that time. Under at-most-once, where there are no leases, it hangs if
        it had messages and settled none for two lease periods.
        """
        if self.idle_until_ms and self.outstanding:
            return self.idle_until_ms if now_ms - self.idle_until_ms >= 2 * lease_ms else 0
        ended = self.ended
        if ended is None or not self.outstanding or ended.settled != self.settled:
            return 0
        hangs = ended.last_ms - ended.first_ms >= lease_ms and now_ms - ended.last_ms <= self._series_leases * lease_ms
        return ended.first_ms if hangs else 0

    def facts(self) -> dict[str, Any]:
        """Return the values that the journal holds; outstanding deliveries follow from the segments."""
        facts = asdict(self)
        for volatile in ("outstanding", "settled", "ended", "travels", "idle_until_ms"):
            del facts[volatile]
        if not self.lost:
            del facts["lost"]
        return facts

    def facts_when_lost(self, at_ms: int) -> dict[str, Any]:
        """Return what the journal holds from its loss at an instant, ms since the epoch, until its end is journaled.

        A new owner ends it at the same instant as of the log, however late it takes over. Until then it gets nothing.
        """
        last_seen_ms = at_ms - self.heartbeat_timeout_ms
        return {**self.facts(), "last_seen_ms": last_seen_ms, "max_backlog": 0, "lost": True}
