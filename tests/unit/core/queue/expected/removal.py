"""What leaves without a delivery: by a purge, and with the log (C40, C42, C79, C80)."""

from __future__ import annotations

from lapse.core.generation import offset_of
from unit.core.queue.expected.message import FILTERS, LATER, WAITING, Bookmark, Ends, Message, is_in_reach
from unit.core.queue.expected.state import State


class Removals(State):
    """Messages that leave without a settlement."""

    def truncated(self, bookmarks: list[Bookmark], now_ms: int, handed_out: bool = False) -> None:
        """Kafka no longer has some records (C40); a lease protects them, and what was sent has left (C79, C80)."""
        held = ("leased", "sent") if handed_out else ()
        for message in self.in_state("transferring", *WAITING, *held):
            if message.bookmark in bookmarks:
                message.deliveries -= message.state in held  # nobody saw it
                self._gone(message, now_ms, "log_truncated", *(["time_limit"] if self.late(message, now_ms) else []))

    def log_begins(self, topic: str, begin_offset: int, now_ms: int) -> None:
        """Kafka has removed the records of a topic below an offset (C40)."""
        if (topic, 0) in self.next_offset:  # of what was never read nothing is noted; it does not come
            self.log_begin[topic] = max(begin_offset, self.log_begin.get(topic, 0))
        self._cut(topic, begin_offset, now_ms, self.in_state("transferring", *WAITING))

    def _cut(self, topic: str, begin_offset: int, now_ms: int, there: list[Message]) -> None:
        for message in [*there, *self.scheduled()]:
            if message.bookmark[0] == topic and offset_of(message.bookmark[2]) < begin_offset:
                was = message.state
                self._gone(message, now_ms, "log_truncated", *(["time_limit"] if self.late(message, now_ms) else []))
                if was in LATER:
                    message.state = "never was"
        self.remembered = {one for one in self.remembered if one[0] != topic or one[2] >= begin_offset}

    def replaced(self, topic: str, epoch: int, now_ms: int) -> None:
        """A topic was deleted and created again (C42)."""
        self._cut(topic, 1 << 62, now_ms, self.in_state("leased", "transferring", *WAITING))
        self.log_begin.pop(topic, None)
        self.order = [bookmark for bookmark in self.order if bookmark[0] != topic]
        self.messages = {bookmark: message for bookmark, message in self.messages.items() if bookmark[0] != topic}
        self.seen = {name: at_ms for name, at_ms in self.seen.items() if name[0] != topic}
        self.spans = [span for span in self.spans if span[0][0] != topic]
        self.elsewhere = {one for one in self.elsewhere if one[0] != topic}
        self.never = {one for one in self.never if one[0] != topic}
        if (topic, 0) in self.next_offset:
            self.next_offset[topic, 0] = 0
            self.since[topic] = epoch

    def purge(self, now_ms: int, leased: bool, text: str = "", ends: Ends | None = None) -> tuple[int, int]:
        def reaches(bookmark: Bookmark) -> bool:
            return is_in_reach(bookmark, ends)

        stays = ("transferring",) if leased else ("transferring", "leased")
        kept = len([m for m in self.in_state(*stays) if FILTERS[text](m.body) and reaches(m.bookmark)])
        kept += len([m for m in self.scheduled() if m.transfer and FILTERS[text](m.body) and reaches(m.bookmark)])
        out = [m for m in self.in_state(*WAITING, *(["leased"] if leased else [])) if FILTERS[text](m.body)]
        out += [m for m in self.scheduled() if not m.transfer and FILTERS[text](m.body)]
        out = [m for m in out if reaches(m.bookmark)]
        for message in out:
            was = message.state
            self._gone(message, now_ms, "purged", *(["time_limit"] if self.late(message, now_ms) else []))
            if was in LATER:
                message.state = "never was"
        return len(out), kept
