"""What a shard holds: messages, places, subscriptions; and how a message leaves, for all reasons that hold."""

from __future__ import annotations

import pickle
from fractions import Fraction

from lapse.core.generation import generation_of, offset_of
from lapse.core.queue.settings import QueueSettings
from unit.core.queue.expected.message import (
    LATER,
    REASONS,
    WAITING,
    Bookmark,
    Gone,
    Message,
    MessageEvent,
    Sent,
    Subscriber,
)


class State:
    """One dict entry per message, every question a loop over all of them."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: dict[Bookmark, Message] = {}
        self.order: list[Bookmark] = []
        self.subscribers: dict[str, Subscriber] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.next_number = 0
        self.turn = -1
        self.served: list[int] = []
        self.handed_out: list[tuple[int, object]] = []
        self.group_turn = Fraction(0)
        self.group_tags: dict[object, Fraction] = {}
        self.began_ms = 0
        self.paused = False
        self.deliveries: list[Sent] = []
        self.removals: list[Gone] = []
        self.remembered: set[Bookmark] = set()
        self.events: list[MessageEvent] = []
        self.seen: dict[tuple[str, int, bytes], list[int]] = {}
        self.released: list[tuple[Bookmark, list[str]]] = []
        self.pending: dict[Bookmark, Gone] = {}
        self.places: dict[Bookmark, int] = {}
        self.next_place = 0
        self.left_at: dict[Bookmark, int] = {}
        self.since: dict[str, int] = {}
        self.log_begin: dict[str, int] = {}
        self.transfers: dict[str, list[tuple[Bookmark, Bookmark]]] = {}
        self.elsewhere: set[Bookmark] = set()
        self.never: set[Bookmark] = set()
        self.spans: list[tuple[tuple[str, int], int, range, set[int]]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> State:
        """Copy itself in C: the world copies its oracle at each commit, and `copy` walks it in Python."""
        return pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))

    def late(self, message: Message, now_ms: int) -> bool:
        on = self.settings.expiration.enabled
        return on and message.deadline_ms is not None and message.deadline_ms <= now_ms

    def outstanding(self, subscription: str) -> int:
        held = [m for m in self.messages.values() if m.holder == subscription and m.state in ("leased", "sent")]
        return len(held)

    def space(self, subscriber: Subscriber) -> int:
        return max(0, subscriber.max_backlog - self.outstanding(subscriber.id))

    def in_state(self, *states: str) -> list[Message]:
        return [self.messages[b] for b in self.order if self.messages[b].state in states]

    def scheduled(self) -> list[Message]:
        return [m for m in self.messages.values() if m.state in LATER]

    def there(self) -> list[Bookmark]:
        """Messages that a rewind leaves alone, whatever their generation (C62)."""
        placed = self.in_state("leased", "sent", "transferring", *WAITING)
        return [*(m.bookmark for m in (*placed, *self.scheduled())), *self.pending]

    def room(self) -> int:
        if self.settings.target_depth is None:
            return 1 << 62
        return max(0, self.settings.target_depth - len(self.in_state("leased", "transferring", *WAITING)))

    def take_place(self, bookmark: Bookmark) -> None:
        self.order.append(bookmark)
        self.places[bookmark] = self.next_place
        self.next_place += 1

    def generation(self, source: tuple[str, int]) -> int:
        return max((generation for of, generation, _, _ in self.spans if of == source), default=0)

    def is_unheard_of(self, bookmark: Bookmark) -> bool:
        """Whether nothing of this name was read, or brought back."""
        position, source = bookmark[2], bookmark[:2]
        return offset_of(position) >= self.next_offset.get(source, 0) or generation_of(position) > self.generation(
            source
        )

    def left_behind(self, bookmark: Bookmark) -> bool:
        """Whether a later rewind went over a message, and did not find it live (C61)."""
        topic, partition, position = bookmark
        return any(
            of == (topic, partition)
            and generation > generation_of(position)
            and offset_of(position) in coming
            and offset_of(position) not in live
            for of, generation, coming, live in self.spans
        )

    def keep_pending(self, gone: Gone) -> None:
        self.pending[gone.bookmark] = gone

    def letter_written(self, bookmark: Bookmark) -> None:
        if bookmark in self.pending:
            self.removals.append(self.pending.pop(bookmark))

    def _limits(self, message: Message) -> list[str]:
        settings, holds = self.settings, []
        if settings.max_deliveries and message.deliveries >= settings.max_deliveries:
            holds.append("max_deliveries")
        if settings.max_cancels and message.cancels > settings.max_cancels:
            holds.append("max_cancels")
        return holds

    def _leave_or_stay(self, message: Message, now_ms: int) -> None:
        holds = self._limits(message) + (["time_limit"] if self.late(message, now_ms) else [])
        holds += (
            ["log_truncated"] if offset_of(message.bookmark[2]) < self.log_begin.get(message.bookmark[0], 0) else []
        )
        if holds:
            self._gone(message, now_ms, *holds)

    def _gone(self, message: Message, now_ms: int, *reasons: str) -> None:
        ordered = tuple(reason for reason in REASONS if reason in reasons)
        wanted = {str(reason) for reason in self.settings.dead_letter_reasons}
        letter = bool(self.settings.dead_letter_topic) and bool(wanted.intersection(ordered))
        self.left_at[message.bookmark] = self.places.get(message.bookmark, self.next_place)
        self.removals.append(
            Gone(
                message.bookmark,
                ordered,
                letter,
                message.deadline_ms,
                max(now_ms, self.began_ms),
                message.deliveries,
                message.cancels,
            )
        )
        if message.state == "unconfirmed":
            self.never.add(message.bookmark)
        message.state, message.holder = ("expired" if "time_limit" in ordered else "gone"), ""
