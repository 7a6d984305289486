"""Handles records that Kafka removed from a shard's logs: those taken in before, and those never read (C40, C80)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.unread_ranges import Gap, Gaps
from lapse.runtime.tp import TP

_EVERYTHING: Final = 1 << 62


class RemovedLog:
    """Tells a shard's machine which records Kafka has removed.

    Args:
        entity: name of the queue or SOW topic, for log messages.
        machine: drops the removed records.
        inbox: knows what was read, and continues behind removed records.
        log: says where the logs begin.
        on_news: called when there is something to report to the machine.
        gaps: ranges that Kafka removed unread, found at take-over.
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
        """Whether messages must still leave because their records are removed."""
        return bool(self._begins)

    def begins(self, tp: TP, offset: int) -> None:
        """Note the offset at which a log begins now."""
        if offset > self._begun.get(tp, 0):
            self._begins[tp] = self._begun[tp] = offset
            self._on_news()

    def is_deleted(self, tp: TP) -> None:
        """Note that a log was deleted. Its unread records are unknown, so no event can name them."""
        if tp not in self._deleted:
            self._deleted.add(tp)
            self._begins[tp] = _EVERYTHING
            self._on_news()

    def note_gap(self, tp: TP, expected: int, first: int) -> None:
        """Note that reading went from `expected` to `first` without a record in between."""
        gap = Gap(tp, expected, first - 1)
        self._gaps.note(gap.parts(self._machine.missed(*gap)))

    def report(self, now_ms: int) -> None:
        """Let the machine drop a bounded number of removed messages, and report ranges that were never read."""
        for tp, offset in list(self._begins.items()):
            if offset < _EVERYTHING and not self._pass_over(tp, offset):
                continue
            if not self._machine.log_begins(tp, offset, now_ms):
                break
            del self._begins[tp]
        for tp, ranges in self._gaps.take().items():
            self._machine.report_unread(tp, ranges, now_ms)

    def _pass_over(self, tp: TP, offset: int) -> bool:
        """Continue behind removed records; return False if waiting messages must be taken in first."""
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
        """Stop looking for gaps."""
        self._gaps.stop()
