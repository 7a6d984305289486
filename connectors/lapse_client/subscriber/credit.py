"""Credits: the division of a subscription's backlog among its shards (Q3).

Shards know nothing of each other. So each one gets a credit of its own, and the credits never add up to more than the
subscription's backlog. If the backlog is at least one per shard, every shard keeps its share. If it is smaller, credits
of one travel: a shard that has had nothing to deliver for a while is set to zero. The next shard gets the credit only
when that shard has answered, because then no delivery can still be on its way. A delivery that the application never
settles keeps a credit until its lease is over. To settle it later frees nothing. A lease that is being renewed is not
over before the answer, because the shard may have renewed it already.

A message that is acknowledged here stays leased until the shard has read the acknowledgment. While a shard keeps its
credit, this does not matter, because the shard counts its leases itself. If a shard has delivered more than its present
credit, an acknowledgment frees credit for others only after the answer to a `subscribe` that was sent later.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

IDLE_MS: Final = 50.0
"""How long a shard with a travelling credit may deliver nothing before the credit travels on, in ms."""

MAX_BACKOFF: Final = 8
"""The greatest factor by which `IDLE_MS` grows while all shards are idle."""

_FOREVER: Final = float("inf")


class Grant(NamedTuple):
    """A `subscribe` command to send to a shard, with the credit as its `max_backlog`."""

    shard: int
    credit: int


P = ParamSpec("P")
R = TypeVar("R")


def _locked(method: Callable[Concatenate[Credits, P], R]) -> Callable[Concatenate[Credits, P], R]:
    """Make a method hold the lock of its object."""

    @functools.wraps(method)
    def locked(self: Credits, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Credits:
    """The credits of all shards. It neither sends nor reads a clock. Every method may be called from any thread.

    Args:
        shards: the number of shards.
        max_backlog: most deliveries that may be unsettled at once, over all shards.
        idle_ms: see `IDLE_MS`.
        after_caps: whether to grant no credit until every shard has sent its queue's limit. With several queues, the
            smallest limit must hold from the first delivery on (Q3).
    """

    def __init__(self, shards: int, max_backlog: int, idle_ms: float = IDLE_MS, *, after_caps: bool = False) -> None:
        self.lock = threading.RLock()
        self.max_backlog = 0 if after_caps else max_backlog
        self.ended = False
        """Whether all credit was taken back for good."""
        self._allowed = max_backlog
        self._unheard = set(range(shards)) if after_caps else set()
        self.outstanding = [0] * shards
        self._shards = shards
        self._idle_ms = idle_ms
        self._sent_credits = [0] * shards
        self._held = [0] * shards  # the greater of the credit sent to a shard and the credit that it confirmed last
        self._waiting = [True] * shards  # sent or to be sent, and not answered yet
        self._settled = [0] * shards  # settled since the last `subscribe` was sent
        self._owed = [0] * shards  # settled beyond its credit, and perhaps not known to the shard yet
        self._active_at_ms = [0.0] * shards
        self._leases: list[dict[float, int]] = [{} for _ in range(shards)]  # outstanding deliveries by end of lease
        self._renewing: list[Counter[float]] = [Counter() for _ in range(shards)]  # leases with a renewal on its way
        self._earliest_ms = _FOREVER  # no lease ends before that
        self._unsent: set[int] = set(range(shards))
        self._idle_moves = 0
        self._goals: list[int] = []  # credits to reach as others are given back; empty = all are reached
        self._gone: set[int] = set()
        self._deal_shares()

    @property
    def travelling(self) -> bool:
        """Whether there are fewer credits than shards, so that they travel."""
        return self._travelling

    @property
    def round_trip_ms(self) -> float:
        """The longest time in which a travelling credit visits every shard, in ms."""
        return 2 * self._shards * self._idle_ms * MAX_BACKOFF

    def credit(self, shard: int) -> int:
        """Return the credit that was sent to a shard last, or is to be sent."""
        return self._sent_credits[shard]

    @_locked
    def total(self) -> int:
        """Return the most deliveries that can be unsettled by the shards' present knowledge; at most `max_backlog`."""
        return sum(map(self._counted, range(self._shards)))

    def _counted(self, shard: int) -> int:
        """Return the most messages that a shard may count as delivered and unsettled."""
        return max(self._held[shard], self.outstanding[shard] + self._owed[shard])

    @_locked
    def delivered(self, shard: int, count: int, now_ms: float, lease_ends_ms: float = _FOREVER) -> None:
        """Count deliveries that came from a shard. Their leases end at `lease_ends_ms` by the broker's clock."""
        if shard in self._gone:
            return
        self.outstanding[shard] += count
        self._lease(shard, count, lease_ends_ms)
        self._active_at_ms[shard] = now_ms
        self._idle_moves = 0

    def _lease(self, shard: int, count: int, ends_ms: float) -> None:
        leases = self._leases[shard]
        leases[ends_ms] = leases.get(ends_ms, 0) + count
        if ends_ms < self._earliest_ms:
            self._earliest_ms = ends_ms

    @_locked
    def settled(self, shard: int, settled: Mapping[float, int], now_ms: float) -> None:
        """Record deliveries of a shard as settled, or as no longer leased. `settled` counts them by end of lease."""
        count = sum(self._unlease(shard, some, ends_ms) for ends_ms, some in settled.items())
        self._owed[shard] += min(count, self._counted(shard) - self._held[shard])
        self.outstanding[shard] -= count
        self._settled[shard] += count
        self._active_at_ms[shard] = now_ms
        self._ask_for_owed(shard)

    def _unlease(self, shard: int, count: int, ends_ms: float) -> int:
        """Remove up to `count` outstanding deliveries whose leases end at `ends_ms`; return how many were removed."""
        leases = self._leases[shard]
        held = leases.pop(ends_ms, 0)
        if held > count:
            leases[ends_ms] = held - count
        return min(held, count)

    @_locked
    def renewing(self, shard: int, leases: Mapping[float, int]) -> None:
        """Count leases of a shard, by their ends, as not over until `renewal_answered` is called with the same ones."""
        self._renewing[shard].update(leases)

    @_locked
    def renewal_answered(self, shard: int, leases: Mapping[float, int]) -> None:
        """Let leases end again at their instants. What was renewed has been moved by `renewed` before."""
        self._renewing[shard] -= Counter(leases)

    @_locked
    def renewed(self, shard: int, ends_ms: float, until_ms: float) -> None:
        """Move the end of a lease from `ends_ms` to `until_ms`. If it counted as over, it is outstanding again."""
        if shard in self._gone:
            return
        self.outstanding[shard] += 1 - self._unlease(shard, 1, ends_ms)
        self._lease(shard, 1, until_ms)

    @_locked
    def end_leases(self, past_ms: float, now_ms: float) -> None:
        """Record deliveries as returned if their leases ended at `past_ms` or before, by the broker's clock."""
        if past_ms < self._earliest_ms:
            return
        for shard, leases in enumerate(self._leases):
            renewing = self._renewing[shard]
            over = {ends_ms: count - renewing[ends_ms] for ends_ms, count in leases.items() if ends_ms <= past_ms}
            if over := {ends_ms: count for ends_ms, count in over.items() if count > 0}:
                self.settled(shard, over, now_ms)
        self._earliest_ms = min((min(leases) for leases in self._leases if leases), default=_FOREVER)

    @_locked
    def answered(self, shard: int, credit: int, now_ms: float) -> None:
        """Record that a shard has confirmed its credit. An answer to an older `subscribe` is ignored."""
        if credit != self._sent_credits[shard] or not self._waiting[shard]:
            return
        self._waiting[shard] = False
        self._held[shard] = credit
        self._active_at_ms[shard] = now_ms
        # The shard may not have known of settlements sent after this `subscribe` when it answered.
        settled = self._settled[shard]
        self._owed[shard] = min(settled, max(0, self.outstanding[shard] + settled - credit))
        self._ask_for_owed(shard)

    def _ask_for_owed(self, shard: int) -> None:
        """Send a shard its credit again, after the settlements. Its answer shows that it has read them.

        Without a backlog nobody would get the credit that this frees.
        """
        if self._owed[shard] and self.max_backlog and not self._waiting[shard]:
            self._waiting[shard] = True
            self._unsent.add(shard)

    @_locked
    def lost(self, shard: int) -> None:
        """Have `subscribe` sent again to a shard that did not answer, or does not know the subscription."""
        if shard in self._gone:
            return
        self._waiting[shard] = True
        self._unsent.add(shard)

    @_locked
    def allows(self, shard: int, max_backlog: int | None) -> None:
        """Record how much a shard's queue allows one subscription; None = any backlog."""
        if max_backlog is not None:
            self._allowed = min(self._allowed, max_backlog)
        self._unheard.discard(shard)
        self._deal_allowed()

    @_locked
    def end(self) -> None:
        """Take all credit back: the shards deliver no more. What is delivered may still be settled."""
        self.ended = True
        self._allowed = self.max_backlog = 0
        self._deal_shares()

    def awaits(self, shard: int) -> bool:
        """Return whether a shard has not confirmed its credit yet."""
        return self._waiting[shard]

    @property
    def awaits_answers(self) -> bool:
        """Whether a shard has not confirmed its credit yet."""
        return any(self._waiting)

    def _deal_allowed(self) -> None:
        if not self._unheard and self.max_backlog != self._allowed:
            self.max_backlog = self._allowed
            self._deal_shares()

    @_locked
    def grow(self, count: int) -> None:
        """Add `count` shards. They get credit as the others confirm that they have less."""
        for shard in range(self._shards, self._shards + count):
            self.outstanding.append(0)
            self._settled.append(0)
            self._owed.append(0)
            self._sent_credits.append(0)
            self._held.append(0)
            self._waiting.append(True)
            self._active_at_ms.append(0.0)
            self._leases.append({})
            self._renewing.append(Counter())
            self._unsent.add(shard)
        self._shards += count
        self._reset_goals()

    @_locked
    def drop(self, shards: Iterable[int]) -> None:
        """Remove shards. The others get their credit, and nothing is sent to the removed ones any more."""
        for shard in shards:
            self._gone.add(shard)
            self._forget(shard)
            self.outstanding[shard] = 0
            self._leases[shard].clear()
            self._unheard.discard(shard)
        self._reset_goals()
        self._deal_allowed()

    def _forget(self, shard: int) -> None:
        self._sent_credits[shard] = self._held[shard] = self._settled[shard] = self._owed[shard] = 0
        self._waiting[shard] = False
        self._unsent.discard(shard)

    def _reset_goals(self) -> None:
        """Aim at equal shares: lower too high credits now, and raise the others once these are confirmed."""
        shares = self._shares()
        most = [min(1, self.max_backlog)] * self._shards if self._travelling else shares
        for shard, credit in enumerate(most):
            if self._sent_credits[shard] > credit:
                self._send_credit(shard, credit)
        self._goals = [] if self._travelling else shares

    def _shares(self) -> list[int]:
        """Return each shard's equal share of the backlog, and set whether credits travel."""
        there = [shard for shard in range(self._shards) if shard not in self._gone]
        self._travelling = 0 < self.max_backlog < len(there)
        share, rest = divmod(self.max_backlog, max(1, len(there)))
        shares = [0] * self._shards
        for at, shard in enumerate(there):
            shares[shard] = share + (at < rest)
        return shares

    @_locked
    def due(self, now_ms: float) -> list[Grant]:
        """Return the `subscribe` commands that are due; the caller sends them."""
        if self._travelling:
            self._withdraw_idle_credits(now_ms)
            self._move_credits()
        elif self._goals:
            self._raise_to_goals()
        if not self._unsent:
            return []
        grants = [Grant(shard, self._sent_credits[shard]) for shard in sorted(self._unsent)]
        for shard in self._unsent:
            self._settled[shard] = 0
        self._unsent.clear()
        return grants

    def _raise_to_goals(self) -> None:
        """Give free credit to shards until each has its goal."""
        free = self.max_backlog - self.total()
        for shard, goal in enumerate(self._goals):
            more = min(goal - self._sent_credits[shard], free)
            if more > 0:
                self._send_credit(shard, self._sent_credits[shard] + more)
                free -= more
        if self._sent_credits == self._goals:
            self._goals = []

    def _deal_shares(self) -> None:
        self._goals = []
        shares = self._shares()
        self._next = shares.index(0) if self._travelling and 0 in shares else 0
        for shard, credit in enumerate(shares):
            if shard not in self._gone and (credit != self._sent_credits[shard] or self._waiting[shard]):
                self._send_credit(shard, credit)

    def _send_credit(self, shard: int, credit: int) -> None:
        self._sent_credits[shard] = credit
        self._held[shard] = max(self._held[shard], credit)
        self._waiting[shard] = True
        self._unsent.add(shard)

    def _withdraw_idle_credits(self, now_ms: float) -> None:
        patience_ms = self._idle_ms * min(MAX_BACKOFF, 1 << min(10, self._idle_moves // self._shards))
        for shard in range(self._shards):
            idle = self._sent_credits[shard] and not self._waiting[shard] and not self.outstanding[shard]
            if idle and now_ms - self._active_at_ms[shard] >= patience_ms:
                self._idle_moves += 1
                self._send_credit(shard, 0)

    def _move_credits(self) -> None:
        free, first = self.max_backlog - self.total(), self._next
        for step in range(self._shards):
            if free <= 0:
                return
            shard = (first + step) % self._shards
            idle = not self._sent_credits[shard] and not self._waiting[shard] and not self.outstanding[shard]
            if idle and shard not in self._gone:
                self._send_credit(shard, 1)
                self._next = (shard + 1) % self._shards
                free -= 1
