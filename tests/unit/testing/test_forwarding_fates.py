"""A worker that forwards dies at each of its writes: each message has one fate (Q21, C38)."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from lapse.protocol.event import EventKind
from lapse.testing import Lapse
from lapse.testing.shard import Crash, MemoryShard
from lapse_client import EventReader
from support.suite.at_length import alike

pytestmark = pytest.mark.feature("C38", "D3", "Q6", "Q12")

MESSAGES = 3
FORWARDED = {EventKind.ACKNOWLEDGED, EventKind.BARRIER_RELEASED}


class Death:
    """Lets the worker die at one of its writes, and not start again by itself.

    Args:
        lapse: the deployment of the worker.
        at: the number of the write. Kafka has the first half of its records, or none of a journal's.
    """

    def __init__(self, lapse: Lapse, at: int) -> None:
        self._lapse = lapse
        self._left = at
        self.came = False

    def strikes(self) -> bool:
        """Count a write; return whether the worker dies in it."""
        self._left -= 1
        if self._left == 0:
            self.came = True
            self._lapse._running = False
        return self._left == 0


def let_die(monkeypatch: pytest.MonkeyPatch, death: Death) -> None:
    """Let the worker die at a write of a shard."""
    write, write_journal = MemoryShard._write, MemoryShard._write_journal

    def write_some(shard: MemoryShard, some: Any, *point: Any) -> None:
        if some and death.strikes():
            write(shard, some[: len(some) // 2], *point)
            raise Crash
        write(shard, some, *point)

    def write_items(shard: MemoryShard, items: Any) -> None:
        if death.strikes():
            raise Crash
        write_journal(shard, items)

    monkeypatch.setattr(MemoryShard, "_write", write_some)
    monkeypatch.setattr(MemoryShard, "_write_journal", write_items)


def offset_in(message_id: bytes) -> int:
    """Return the offset of the message that was forwarded with an id, `forward/from/from:0:2/1700000000000`."""
    return int(message_id.split(b"/")[2].split(b":")[2])


def offsets_of(some: Any) -> range:
    return range(some.first, some.last + 1)


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("barrier", alike(True, False))
@pytest.mark.parametrize("away_s", alike(60, 1))
def test_each_message_has_one_fate_wherever_its_forwarder_dies(
    semantics: str, barrier: bool, away_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the messages live, as well: what the target has has left, and what it has not expires here."""
    seen = set[tuple[int, int]]()
    for at in count(1):
        with Lapse() as lapse, monkeypatch.context() as patched, ExitStack() as other:
            lapse.queue("target")
            traits = {"barrier": "/end = 1", "ordering": "total"} if barrier else {}
            lapse.queue("from", forward_to="target", expiration="enabled", semantics=semantics, **traits)
            if barrier:
                other.enter_context(lapse.subscriber("from", 0))  # to which barriers go as well
            lapse.stop_worker()
            with lapse.publisher() as publisher:
                for number in range(MESSAGES):
                    publisher.publish("from", b'{"end": %d}' % (number == 1), ttl_ms=10_000)
            death = Death(lapse, at)
            let_die(patched, death)
            lapse.start_worker()
            if not death.came:
                break
            lapse.clock.advance(away_s)
            lapse.start_worker()
            copies = [offset_in(dict(one.headers)["lapse-message-id"]) for one in lapse.records("target")]
            letters = [one.origin.offset for one in lapse.dead_letters("from") if one.origin is not None]
            events = list(EventReader("from"))
        assert sorted(copies + letters) == [*range(MESSAGES)], f"write {at}: copies {copies}, letters {letters}"
        for kinds, offsets in ((FORWARDED, copies), ({EventKind.DEAD_LETTERED}, letters)):
            reported = {at for one in events if one.event in kinds for some in one.messages for at in offsets_of(some)}
            assert reported == {*offsets}, f"write {at}: {kinds}"
        seen.add((len(copies), len(letters)))
    assert at > 4
    if away_s > 10:
        assert {(MESSAGES, 0), (0, MESSAGES)} < seen, "all, none, and some of them"
