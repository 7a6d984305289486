"""Redrive: dead letters go back to where they came from, or elsewhere (D5, C29, C30)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from confluent_kafka import KafkaError, KafkaException, Message

from lapse.core.expression import Filter, compile_filter
from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol import redrive as rules
from lapse_client.connection import Connection
from lapse_client.dead_letter import DeadLetter
from lapse_client.error import ConnectionFailed, PublishFailed, UnknownEntity

_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters.

    Attributes:
        entity: of this queue or SOW topic; empty = of all.
        reasons: for any of these; empty = for all.
        since_ms: died at this instant or later, ms since the epoch.
        until_ms: died before this instant, ms since the epoch.
        filter: an expression (X1) over payload, headers, key, topic, partition, offset of the original.
        max_redrives: letters redriven so often already are refused.
    """

    entity: str = ""
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    max_redrives: int = rules.MAX_REDRIVES

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """The letters that are meant.

        Raises:
            ExpressionError: the filter is no expression.
        """
        matches: Filter | None = compile_filter(self.filter) if self.filter else None
        for letter in letters:
            died_ms = _died_ms(letter)
            if (
                (not self.entity or letter.entity == self.entity)
                and (not self.reasons or not self.reasons.isdisjoint(letter.reasons))
                and (self.since_ms is None or died_ms >= self.since_ms)
                and (self.until_ms is None or died_ms < self.until_ms)
                and (matches is None or matches(Original(letter)))
            ):
                yield letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where letters go, and with which lifetime.

    Attributes:
        topic: another topic than the origin; empty = to where each came from.
        lifetime: `default`: none of its own, so the queue's applies; `original`: its old deadline; `new`: `ttl_ms`.
        ttl_ms: the new lifetime, ms.
    """

    topic: str = ""
    lifetime: Literal["default", "original", "new"] = "default"
    ttl_ms: int = 0


class Original:
    """A dead letter's message as expressions see it."""

    __slots__ = ("letter",)

    def __init__(self, letter: DeadLetter) -> None:
        self.letter = letter

    @property
    def payload(self) -> object:
        """The payload if it is JSON, else None."""
        try:
            return None if self.letter.value is None else orjson.loads(self.letter.value)
        except orjson.JSONDecodeError:
            return None

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers; of a repeated name the last counts."""
        return {name: value for name, value in self.letter.headers if value is not None}

    @property
    def key(self) -> bytes | None:
        """The key."""
        return self.letter.key

    @property
    def topic(self) -> str:
        """Where it came from."""
        return "" if self.letter.origin is None else self.letter.origin.topic

    @property
    def partition(self) -> int:
        """Its partition there."""
        return -1 if self.letter.origin is None else self.letter.origin.partition

    @property
    def offset(self) -> int:
        """Its offset there."""
        return -1 if self.letter.origin is None else self.letter.origin.offset

    @property
    def timestamp_ms(self) -> int:
        """When it died, ms since the epoch: its own timestamp is not on the letter."""
        return _died_ms(self.letter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One letter of a plan.

    Attributes:
        letter: the letter.
        topic: where it goes.
        partition: which partition of it; None = the key decides.
        headers: what it is sent with.
        refused: why it is not sent all the same; empty = it is.
        deadline_passed: whether its original deadline has passed (C30).
    """

    letter: DeadLetter
    topic: str
    partition: int | None
    headers: list[tuple[str, bytes | None]] = field(repr=False)
    refused: str = ""
    deadline_passed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For an audit: what was sent where, and why it had died."""
        letter = self.letter
        return {
            "letter": str(letter.bookmark),
            "origin": None if letter.origin is None else str(letter.origin),
            "entity": letter.entity,
            "reasons": list(letter.reasons),
            "lapse_id": letter.lapse_id,
            "redriven_count": letter.redriven_count + 1,
            "topic": self.topic,
            "refused": self.refused,
            "expires_at_ms": letter.expires_at_ms,
            "deadline_passed": self.deadline_passed,
        }


def plan(letters: Iterable[DeadLetter], choice: Choice, target: Target, now_ms: int) -> Iterator[Line]:
    """What a redrive would do, letter by letter; nothing is sent.

    Args:
        letters: what there is.
        choice: which of them.
        target: where they go.
        now_ms: the instant to judge original deadlines by, ms since the epoch.
    """
    for letter in choice.of(letters):
        origin = letter.origin
        refused = ""
        if letter.redriven_count >= choice.max_redrives:
            refused = "loop limit"
        elif not target.topic and origin is None:
            refused = "no origin"
        stated: tuple[str, int] | None = None
        if target.lifetime == "new":
            stated = TTL_MS, target.ttl_ms
        elif target.lifetime == "original" and letter.expires_at_ms is not None:
            stated = EXPIRES_AT_MS, letter.expires_at_ms
        yield Line(
            letter=letter,
            topic=target.topic or ("" if origin is None else origin.topic),
            partition=None if target.topic or origin is None else origin.partition,
            headers=rules.headers(
                letter.headers,
                lapse_id=letter.lapse_id,
                redriven_count=letter.redriven_count,
                queue="" if target.topic else letter.entity,
                lifetime=stated,
            ),
            refused=refused,
            deadline_passed=letter.expires_at_ms is not None and letter.expires_at_ms <= now_ms,
        )


def send(
    lines: Iterable[Line],
    connection: Connection,
    *,
    rate: float | None = None,
    sent: Callable[[Line, str], None] = lambda line, error: None,
) -> int:
    """Send what is not refused, and wait until all of it is safe.

    Args:
        lines: the plan.
        connection: the cluster.
        rate: at most so many per second.
        sent: told of each record that is safe, and of each that was not taken, with the error.

    Returns:
        How many were sent.

    Raises:
        UnknownEntity: there is no such topic.
        PublishFailed: some were not taken; the text counts them.
    """
    topics = connection.partitions()
    producer = connection.producer()
    done, failures = 0, list[tuple[Line, object]]()
    began = time.monotonic()

    def reported(line: Line) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append((line, error))
            sent(line, "" if error is None else str(error))

        return report

    try:
        for line in lines:
            if line.refused:
                continue
            if line.topic not in topics:
                raise UnknownEntity("topic", line.topic, topics)
            options: dict[str, Any] = {} if line.partition is None else {"partition": line.partition}
            while True:
                try:
                    producer.produce(
                        line.topic,
                        line.letter.value,
                        line.letter.key,
                        headers=list(line.headers),
                        on_delivery=reported(line),
                        **options,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            done += 1
            producer.poll(0)
            if rate is not None and (ahead_s := began + done / rate - time.monotonic()) > 0:
                producer.flush(ahead_s)
                time.sleep(max(0.0, began + done / rate - time.monotonic()))
        unsent = producer.flush(_FLUSH_S)
    except KafkaException as error:
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    if failures or unsent:
        first, cause = failures[0] if failures else (None, "no answer in time")
        topic, key = ("", None) if first is None else (first.topic, first.letter.key)
        raise PublishFailed(topic, key, cause, len(failures) + unsent)
    return done


def _died_ms(letter: DeadLetter) -> int:
    return letter.timestamp_ms if letter.expired_at_ms is None else letter.expired_at_ms
