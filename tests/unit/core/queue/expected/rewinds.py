"""Bringing back what has left (Q22, C61 to C63)."""

from __future__ import annotations

from dataclasses import replace

from lapse.core.generation import offset_of, position_of
from unit.core.queue.expected.arrival import Arrival
from unit.core.queue.expected.message import FILTERS, Bookmark, Message, MessageEvent, Published


class Rewinds(Arrival):
    """Records that are taken in once more."""

    def rewind(
        self,
        firsts: dict[str, int],
        log: dict[tuple[str, int], list[Published]],
        now_ms: int,
        *,
        kept: bool = False,
        handed_over: bool = False,
        text: str = "",
        dry_run: bool = False,
    ) -> int:
        """Bring back what has left, in the order of the log; how many messages that are."""
        waiting: dict[tuple[str, int], list[Published]] = {}
        generations: dict[tuple[str, int], int] = {}
        live_in: dict[tuple[str, int], set[int]] = {}
        wanted: dict[tuple[str, int], set[int]] = {}
        for source, next_offset in self.next_offset.items():
            first = firsts.get(source[0], next_offset)
            if first >= next_offset:
                continue
            generations[source] = self.generation(source) + 1
            live_in[source] = {offset_of(b[2]) for b in self.there() if b[:2] == source}
            # Each record has its turn, also one that stays out: a producer's clock may go back.
            waiting[source] = [one for one in log.get(source, []) if first <= one.offset < next_offset]
            came = {one.offset for one in self.as_they_came(source, log.get(source, []), next_offset, now_ms)}
            wanted[source] = came - live_in[source]
        count, brought = 0, set()
        while any(waiting.values()):
            source = min((s for s in waiting if waiting[s]), key=lambda s: (waiting[s][0].timestamp, s))
            record = waiting[source].pop(0)
            name = (*source, record.offset)
            if record.offset not in wanted[source]:
                continue
            if name in self.never or (name in self.elsewhere and not handed_over) or not FILTERS[text](record.body):
                continue
            stamped = record if kept else replace(record, timestamp=now_ms)
            message = self.once_more(stamped, (*source, position_of(record.offset, generations[source])), now_ms)
            if message is None:
                continue
            count += 1
            if not dry_run:
                brought.add(source)
                self.come_back(message, stamped, now_ms)
        for source in sorted(brought):  # a rewind that brings nothing back leaves nothing behind
            coming = range(firsts[source[0]], self.next_offset[source])
            self.spans.append((source, generations[source], coming, live_in[source]))
        return count

    def once_more(self, record: Published, bookmark: Bookmark, now_ms: int) -> Message | None:
        """The message that a record becomes again; None if it has no valid lifetime, or has expired."""
        try:
            deadline_ms = self.deadline(record, self.settings.expiration_of(bookmark[0]).default_ms)
        except ValueError:
            return None
        message = Message(bookmark, "available", deadline_ms, body=record.body, retry=record.retry)
        return None if self.late(message, now_ms) else message

    def come_back(self, message: Message, record: Published, now_ms: int) -> None:
        """Give a message its place, or let it wait for its instant or for room."""
        self.read_traits(message)
        self.events.append(MessageEvent("rewound", message.bookmark))
        self.messages[message.bookmark] = message
        if record.enqueue_at_ms is not None and record.enqueue_at_ms > now_ms:  # L5, L1
            message.state, message.at_ms = "scheduled", record.enqueue_at_ms
        elif self.room() and not any(m.state == "held" for m in self.messages.values()):
            self.enter(message, now_ms)
        else:
            message.state, message.at_ms = "held", now_ms

    def as_they_came(
        self, source: tuple[str, int], records: list[Published], behind: int, now_ms: int
    ) -> list[Published]:
        """Records that became messages of this queue when they were read, or would have."""
        seen, found = self.seen, []
        self.seen = {}
        for record in records:
            mine = record.redriven_for in ("", self.settings.name)
            mine &= record.transferred is None or record.transferred[0] == self.settings.name
            if record.offset >= behind or not mine:
                continue
            if record.transferred is None and self.repeats(*source, record):
                continue
            try:
                if record.broken:
                    raise ValueError
                deadline_ms = self.deadline(record, self.settings.expiration_of(source[0]).default_ms)
            except ValueError:
                continue
            if self.late(Message((*source, record.offset), "", deadline_ms), min(record.timestamp, now_ms)):
                continue
            if record.message_id and self.settings.dedup_window_ms and record.transferred is None:
                self.occupy(*source, record)
            found.append(record)
        self.seen = seen
        return found
