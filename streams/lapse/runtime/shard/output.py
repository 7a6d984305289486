"""Records that both kinds of shards write: events, dead letters and answers (X2, X4, D2, D4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from lapse.core.reason import Reason
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.event import EventKind
from lapse.protocol import answer as answers
from lapse.protocol import event as events
from lapse.protocol import header, topic
from lapse.protocol.answer import Answer
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import Encoding
from lapse.protocol.dead_letter import Death
from lapse.protocol.event import Event
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.packed_letter import Dead, PackedLetters
from lapse.runtime.shard.command_authorizer import parted

_RANGES_PER_EVENT: Final = 1_000
"""The greatest number of ranges in an event, so that any topic takes it."""


class ShardOutput:
    """Writes what a shard has to tell.

    Args:
        entity: the queue or SOW topic.
        partition: the shard.
        epoch: the epoch.
        dead_letter_topic: where letters go; empty = nowhere.
        dead_letter_partitions: how many partitions that topic has (C27).
    """

    def __init__(
        self, entity: str, partition: int, epoch: int, dead_letter_topic: str, dead_letter_partitions: int
    ) -> None:
        self._entity = entity
        self._partition = partition
        self._epoch = epoch
        self._epoch_bytes = b"%d" % epoch
        self._letters = dead_letter_topic
        self._letter_partitions = max(1, dead_letter_partitions)
        self._events = topic.events(entity)
        self._deliveries = topic.deliveries(entity)
        self.users: Collection[str] | None = None
        """Users who have topics of their own; names begin with theirs then. None = there are none (X4)."""

    def answer(self, answer: CommandAnswer, encoding: Encoding) -> Output:
        """An answer to a command, encoded as the command was (X2)."""
        to, command_id = self.address(answer.id)
        subscription = self.address(answer.subscription)[1]
        facts: dict[str, Any] = dict(answer.facts)
        wire = Answer(
            id=command_id,
            command=answer.command,
            status="error" if answer.error else "ok",
            error=answer.error,
            code=answer.code,
            partition=self._partition,
            at_ms=answer.at_ms,
            counts=dict(answer.counts),
            **facts,
        )
        headers = [
            (header.KIND, b"answer"),
            (header.SUBSCRIPTION, subscription.encode()),
            (header.COMMAND_ID, command_id.encode()),
            (header.EPOCH, self._epoch_bytes),
        ]
        return Output(to, self._partition, None, answers.encode(wire, encoding), headers)

    @property
    def topics(self) -> list[str]:
        """Every topic on which clients are spoken to."""
        users = () if self.users is None else self.users
        return [self._deliveries, *(topic.deliveries(self._entity, user) for user in users)]

    def address(self, name: str) -> tuple[str, str]:
        """The topic on which a name is spoken to, and what it is called there."""
        if self.users is None:
            return self._deliveries, name
        user, own = parted(name)
        return topic.deliveries(self._entity, user if user in self.users else ""), own

    def _tell(
        self,
        kind: EventKind,
        at_ms: int,
        messages: Sequence[BookmarkRange],
        reasons: Sequence[Reason] = (),
        subscription: str = "",
        detail: str = "",
        **facts: Any,
    ) -> list[Output]:
        """An event, in as many records as its ranges take (D4); those of one key stay in order.

        Args:
            kind: what happened; without a topic for letters nothing is dead-lettered (D1).
            at_ms: its instant, ms since the epoch.
            messages: which; empty = it is about the entity, or a subscription.
            reasons: why they left, if they did.
            subscription: whose doing it was.
            detail: a sentence for people.
            facts: what else is known, by the event's fields.
        """
        if kind is EventKind.DEAD_LETTERED and not self._letters:
            kind = EventKind.EXPIRED
        written = [
            Event(
                entity=self._entity,
                event=kind.value,
                at_ms=at_ms,
                partition=self._partition,
                epoch=self._epoch,
                messages=part,
                reasons=tuple(reason.value for reason in reasons),
                subscription=subscription,
                dead_letter_topic=self._letters if kind is EventKind.DEAD_LETTERED else "",
                detail=detail,
                **facts,
            )
            for part in _parts(messages)
        ]
        return [Output(self._events, self._partition, event.key, events.encode(event), []) for event in written]

    def _letters_of(
        self, source: tuple[str, int], reasons: tuple[Reason, ...], at_ms: int, detail: str, dead: Iterable[Dead]
    ) -> Packed:
        """Dead letters of messages of one source that share a fate (D2, C27).

        Args:
            source: their topic and partition.
            reasons: why they left, in L14's order.
            at_ms: the instant of the decision, ms since the epoch.
            detail: the text of the fault; empty = a standard sentence.
            dead: the messages.
        """
        return self._packed(source, PackedLetters(self._death(source, reasons, at_ms, detail)).pack(dead))

    def _death(self, source: tuple[str, int], reasons: tuple[Reason, ...], at_ms: int, detail: str) -> Death:
        """What such messages have in common."""
        bookmark = Bookmark(*source, 0)
        return Death(
            entity=self._entity,
            bookmark=bookmark,
            reasons=reasons,
            expired_at_ms=at_ms,
            detail=detail,
            epoch=self._epoch,
        )

    def _packed(self, source: tuple[str, int], letters: Sequence[bytes]) -> Packed:
        return Packed(self._letters, source[1] % self._letter_partitions, letters)


def _parts(messages: Sequence[BookmarkRange]) -> Iterator[tuple[BookmarkRange, ...]]:
    """Ranges as single events hold them; one event without any if there are none."""
    for first in range(0, max(1, len(messages)), _RANGES_PER_EVENT):
        yield tuple(messages[first : first + _RANGES_PER_EVENT])
