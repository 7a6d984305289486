"""Records that Kafka removed from the logs of a shard: where the logs begin, and what was never read (C40, C80)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lapse.runtime.shard.gap import Gap, Gaps
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.machine import Machine
from lapse.runtime.tp import TP

_EVERYTHING: Final = 1 << 62


class RemovedLog:
    """Tells a shard's machine what Kafka has removed.

    Args:
        entity: the queue or SOW topic, for people.
        machine: takes in what is gone.
        inbox: says what was read, and goes on behind what is gone.
        log: says where the logs begin.
        on_news: called when there is something to tell.
        gaps: what Kafka has removed unread, as was seen at the take-over.
    """

    def __init__(
        self,
        entity: str,
        machine: Machine,
        inbox: Inbox,
        log: LogReader,
        on_news: Callable[[], None],
        gaps: Iterable[Gap],
    ) -> None:
        self._machine = machine
        self._inbox = inbox
        self._on_news = on_news
        self._begins: dict[TP, int] = {}
        self._begun: dict[TP, int] = {}
        self._deleted: set[TP] = set()
        found = [gap for one in gaps for gap in one.parts(machine.missed(*one))]
        self._gaps = Gaps(entity, log, on_news, found)

    @property
    def is_left(self) -> bool:
        """Whether messages still have to leave because their records are gone."""
        return bool(self._begins)

    def begins(self, tp: TP, offset: int) -> None:
        """Learn that a log begins at an offset now."""
        if offset > self._begun.get(tp, 0):
            self._begins[tp] = self._begun[tp] = offset
            self._on_news()

    def is_deleted(self, tp: TP) -> None:
        """Learn that a log is there no longer. What was not read of it is not known, so no event can say it."""
        if tp not in self._deleted:
            self._deleted.add(tp)
            self._begins[tp] = _EVERYTHING
            self._on_news()

    def passed_over(self, tp: TP, expected: int, first: int) -> None:
        """Learn that the record after those that were read is at `first`, where `expected` was."""
        gap = Gap(tp, expected, first - 1)
        self._gaps.note(gap.parts(self._machine.missed(*gap)))

    def tell(self, now_ms: int) -> None:
        """Have the machine let go of what is gone, a bounded amount of it."""
        for tp, offset in list(self._begins.items()):
            if offset < _EVERYTHING and not self._pass_over(tp, offset):
                continue
            if not self._machine.log_begins(tp, offset, now_ms):
                break
            del self._begins[tp]
        for tp, ranges in self._gaps.take().items():
            self._machine.never_read(tp, ranges, now_ms)

    def _pass_over(self, tp: TP, offset: int) -> bool:
        """Go on behind what is gone and was not taken in; False if the machine has room for it, and takes it first."""
        found = self._inbox.unread(tp, offset)
        if found is None:
            return True
        missed = self._machine.missed(tp, *found)
        if not missed:
            return True
        if self._inbox.has_messages(0) or self._inbox.withholds(tp) or self._machine.unfinished is not None:
            return False
        self._inbox.cut(tp, offset)
        self._gaps.find(Gap(tp, *one) for one in missed)
        return True

    def stop(self) -> None:
        """Look no longer."""
        self._gaps.stop()
