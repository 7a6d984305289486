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
from lapse.runtime.authorization.command_authorizer import parted
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.range_columns import RangeColumns
from lapse.runtime.letters.packed_letter import Dead, PackedLetters

_RANGES_PER_EVENT: Final = 1_000
"""The greatest number of ranges in an event. Such an event is small enough for any topic."""


class ShardOutput:
    """Turns events, dead letters and answers of a shard into records.

    Args:
        entity: name of the queue or SOW topic.
        partition: the shard's number.
        epoch: the shard's epoch.
        dead_letter_topic: topic of the letters; empty if there are none.
        dead_letter_partitions: the number of partitions of that topic (C27).

    Attributes:
        epoch: the shard's epoch.
    """

    def __init__(
        self, entity: str, partition: int, epoch: int, dead_letter_topic: str, dead_letter_partitions: int
    ) -> None:
        self._entity = entity
        self._partition = partition
        self.epoch = epoch
        self._epoch_bytes = b"%d" % epoch
        self._letters = dead_letter_topic
        self._letter_partitions = max(1, dead_letter_partitions)
        self._events = topic.events(entity)
        self._deliveries = topic.deliveries(entity)
        self.users: Collection[str] | None = None
        """Users with topics of their own. Names then begin with the user's. None if no users are configured (X4)."""

    def answer(self, answer: CommandAnswer, encoding: Encoding) -> Output:
        """Return the record of an answer, encoded as its command was (X2)."""
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
        """Every topic with records for clients."""
        users = () if self.users is None else self.users
        return [self._deliveries, *(topic.deliveries(self._entity, user) for user in users)]

    def address(self, name: str) -> tuple[str, str]:
        """Return the topic on which a client is reached, and the client's name without its user."""
        if self.users is None:
            return self._deliveries, name
        user, own = parted(name)
        return topic.deliveries(self._entity, user if user in self.users else ""), own

    def _event_records(
        self,
        kind: EventKind,
        at_ms: int,
        messages: Sequence[BookmarkRange] | RangeColumns,
        reasons: Sequence[Reason] = (),
        subscription: str = "",
        detail: str = "",
        **facts: Any,
    ) -> list[Output]:
        """Return an event as one or more records, since each holds a limited number of ranges (D4).

        Records with the same key keep their order.

        Args:
            kind: what happened. Without a dead-letter topic, `DEAD_LETTERED` is written as `EXPIRED` (D1).
            at_ms: instant of the event, ms since the epoch.
            messages: the messages; empty if the event is about the entity or a subscription.
            reasons: why the messages left, if they did.
            subscription: the subscription that caused the event.
            detail: a sentence for people.
            facts: further fields of the event.
        """
        if kind is EventKind.DEAD_LETTERED and not self._letters:
            kind = EventKind.EXPIRED
        outputs: list[Output] = []
        for part in _parts(messages):
            event = Event(
                entity=self._entity,
                event=kind.value,
                at_ms=at_ms,
                partition=self._partition,
                epoch=self.epoch,
                messages=part if isinstance(part, tuple) else (),
                reasons=tuple(reason.value for reason in reasons),
                subscription=subscription,
                dead_letter_topic=self._letters if kind is EventKind.DEAD_LETTERED else "",
                detail=detail,
                **facts,
            )
            value = events.encode(event, None if isinstance(part, tuple) else part.pack())
            outputs.append(Output(self._events, self._partition, event.key, value, []))
        return outputs

    def _letters_of(
        self,
        source: tuple[str, int],
        reasons: tuple[Reason, ...],
        at_ms: int,
        detail: str,
        incarnation: int,
        dead: Iterable[Dead],
    ) -> Packed:
        """Return dead letters of messages from one source that left for the same reasons (D2, C27).

        Args:
            source: topic and partition of the messages.
            reasons: why they left, in L14's order.
            at_ms: the instant of the decision, ms since the epoch.
            detail: the text of the fault; empty for a standard sentence.
            incarnation: distinguishes the topic from earlier ones with the same name (C42); 0 = there were none.
            dead: the messages.
        """
        return self._packed(source, PackedLetters(self._death(source, reasons, at_ms, detail, incarnation)).pack(dead))

    def _death(
        self, source: tuple[str, int], reasons: tuple[Reason, ...], at_ms: int, detail: str, incarnation: int
    ) -> Death:
        """Return what the letters of these messages have in common."""
        bookmark = Bookmark(*source, 0)
        return Death(
            entity=self._entity,
            bookmark=bookmark,
            reasons=reasons,
            expired_at_ms=at_ms,
            detail=detail,
            epoch=self.epoch,
            incarnation=incarnation,
        )

    def _packed(self, source: tuple[str, int], letters: Sequence[bytes]) -> Packed:
        return Packed(self._letters, source[1] % self._letter_partitions, letters)


def _parts(
    messages: Sequence[BookmarkRange] | RangeColumns,
) -> Iterator[tuple[BookmarkRange, ...] | RangeColumns]:
    """Split ranges into parts that fit into one event. Without ranges, return one empty part."""
    for first in range(0, max(1, len(messages)), _RANGES_PER_EVENT):
        part = messages[first : first + _RANGES_PER_EVENT]
        yield part if isinstance(part, RangeColumns) else tuple(part)
