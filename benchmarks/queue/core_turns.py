"""Measures in the core alone how long a queue shard with very many messages works without a pause."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.plain_record import PlainRecord
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.protocol.command import Command

_NOW_MS = 1_800_000_000_000
_DUE_MS = _NOW_MS + 60_000
_AT_ONCE = 4_096
_BACKLOG = 2_000_000


def run(messages: int = 300_000, least_ms: float = 0.0, forms: str = "") -> Figures:
    """Let many messages fall due at once in each form. Return the shard's longest turn of each, ms of CPU.

    Args:
        messages: the number of messages.
        least_ms: print turns that take longer, ms; 0 = none.
        forms: the names of the forms, with commas; empty = all.
    """
    gc.disable()  # in a worker it runs rarely
    figures: Figures = {"messages": messages}
    names = forms.split(",") if forms else list(_CROWDS)
    for what in names:
        do = _CROWDS[what]
        longest = _Longest(what, least_ms)
        do(longest, messages)
        figures[f"{what}_ms"] = 1000 * longest.seconds
    return figures


class _Longest:
    """Measures turns, and keeps the longest."""

    def __init__(self, what: str, least_ms: float) -> None:
        self.seconds = 0.0
        self._what = what
        self._least_ms = least_ms

    def turn(self, do: Callable[[], Any]) -> Any:
        """Call a function as one turn, and measure its CPU."""
        began = time.thread_time()
        done = do()
        seconds = time.thread_time() - began
        if 0 < self._least_ms < 1000 * seconds:
            print(f"{self._what}: {1000 * seconds:.1f} ms")
        self.seconds = max(self.seconds, seconds)
        return done


def _shard(messages: int, headers: list[tuple[str, bytes]], **settings: Any) -> QueueShard:
    known = QueueSettings(name="turns", expiration=Expiration(True), dead_letter_topic="letters", **settings)
    shard = QueueShard(known, QueueState())
    groups = [[*headers, ("group", b"%d" % at)] for at in range(1000)]
    for first in range(0, messages, _AT_ONCE):
        some = range(first, min(first + _AT_ONCE, messages))
        shard.arrive(
            "turns", 0, [PlainRecord(at, _NOW_MS, b"k", b"{}", groups[at % 1000]) for at in some], Step(), _NOW_MS
        )
    return shard


def _leave(longest: _Longest, shard: QueueShard, now_ms: int) -> None:
    while shard.is_due(now_ms):
        longest.turn(lambda: shard.advance(now_ms, Step(), _AT_ONCE))


_EXPIRES = [("lapse-expires-at-ms", b"%d" % _DUE_MS)]
_SCHEDULED = [("lapse-enqueue-at-ms", b"%d" % _DUE_MS)]


def _expire(longest: _Longest, messages: int) -> None:
    _leave(longest, _shard(messages, _EXPIRES), _DUE_MS)


def _expire_in_groups(longest: _Longest, messages: int) -> None:
    traits = TraitReader(group=lambda view: view.headers["group"].decode())
    shard = _shard(messages, _EXPIRES, traits=traits, group_limit=1)
    _subscribed(shard, 10)
    shard.deliver(_NOW_MS, Step())
    _leave(longest, shard, _DUE_MS)


def _come_due(longest: _Longest, messages: int) -> None:
    _leave(longest, _shard(messages, _SCHEDULED), _DUE_MS)


def _come_due_late(longest: _Longest, messages: int) -> None:
    _leave(longest, _shard(messages, [*_SCHEDULED, ("lapse-expires-at-ms", b"%d" % (_DUE_MS + 1))]), _DUE_MS + 10)


def _subscribed(shard: QueueShard, backlog: int) -> None:
    shard.subscribing.subscribe("s", "c", backlog, 10_000, "", _NOW_MS, Step())


def _leased(longest: _Longest, messages: int) -> QueueShard:
    shard = _shard(messages, [])
    _subscribed(shard, _BACKLOG)
    while longest.turn(lambda: shard.deliver(_NOW_MS, Step())):
        pass
    return shard


def _leases_end(longest: _Longest, messages: int) -> None:
    shard = _leased(longest, messages)
    shard.note_heartbeat("s", _NOW_MS + 29_999)
    _leave(longest, shard, _NOW_MS + 30_000)


def _consumer_is_lost(longest: _Longest, messages: int) -> None:
    _leave(longest, _leased(longest, messages), _NOW_MS + 10_001)


def _unsubscribe(longest: _Longest, messages: int) -> None:
    shard = _leased(longest, messages)
    longest.turn(lambda: shard.unsubscribe("s", _NOW_MS, Step()))


def _purge(longest: _Longest, messages: int) -> None:
    shard = _shard(messages, [])
    commands = QueueCommands(shard, "turns", lambda _: "")
    purge = Command(command="purge", id="p")
    while longest.turn(lambda: commands.carry_out_part(purge, _NOW_MS, Step(), None)):
        pass


def _take_over(longest: _Longest, messages: int) -> None:
    shard = _shard(messages, _EXPIRES)
    other = longest.turn(lambda: QueueShard(shard.settings, shard.state))
    longest.turn(lambda: other.take_over(_DUE_MS, Step()))
    _leave(longest, other, _DUE_MS)


_GROUPS = TraitReader(group=lambda view: view.headers["group"].decode())
_FEW = "HEADER('few') = 'yes'"
_ONE_IN = 1_000


def _in_groups(count: int, first: int = 0) -> list[PlainRecord]:
    """Return messages that each have a group of their own. One in a thousand matches the filter `_FEW`."""
    return [
        PlainRecord(
            at, _NOW_MS, b"k", b"{}", [("group", b"%d" % at), ("few", b"yes" if at % _ONE_IN == _ONE_IN - 1 else b"no")]
        )
        for at in range(first, first + count)
    ]


def _first_of_groups(longest: _Longest, messages: int) -> None:
    shard = QueueShard(QueueSettings(name="turns", traits=_GROUPS), QueueState())
    for first in range(0, messages, _AT_ONCE):
        shard.arrive("turns", 0, _in_groups(min(_AT_ONCE, messages - first), first), Step(), _NOW_MS)
    _subscribed(shard, 100)
    while longest.turn(lambda: shard.deliver(_NOW_MS, Step())):
        pass


def _few_groups_match(longest: _Longest, messages: int, limit: int = 1) -> None:
    shard = QueueShard(QueueSettings(name="turns", traits=_GROUPS, group_limit=limit), QueueState())
    shard.subscribing.subscribe("s", "c", _BACKLOG, 10_000, _FEW, _NOW_MS, Step())
    for first in range(0, messages, _AT_ONCE):
        shard.arrive("turns", 0, _in_groups(min(_AT_ONCE, messages - first), first), Step(), _NOW_MS)
        if first:
            shard.deliver(_NOW_MS, Step())
    while longest.turn(lambda: shard.deliver(_NOW_MS, Step())):
        pass
    for first in range(messages, messages + 10 * _ONE_IN, _ONE_IN):
        shard.arrive("turns", 0, _in_groups(_ONE_IN, first), Step(), _NOW_MS)
        step = Step()
        while longest.turn(lambda step=step: shard.deliver(_NOW_MS, step)):  # type: ignore[misc]
            pass
        assert sum(len(one.messages) for one in step.deliveries) == 1


def _few_messages_match(longest: _Longest, messages: int) -> None:
    _few_groups_match(longest, messages, limit=10)


_CROWDS: dict[str, Callable[[_Longest, int], None]] = {
    "expire": _expire,
    "expire_in_groups": _expire_in_groups,
    "come_due": _come_due,
    "come_due_late": _come_due_late,
    "leases_end": _leases_end,
    "consumer_is_lost": _consumer_is_lost,
    "unsubscribe": _unsubscribe,
    "purge": _purge,
    "take_over": _take_over,
    "first_of_groups": _first_of_groups,
    "few_groups_match": _few_groups_match,
    "few_messages_match": _few_messages_match,
}

if __name__ == "__main__":
    alone(run)
