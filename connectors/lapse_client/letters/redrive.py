"""Redrive: dead letters go back to where they came from, or elsewhere (D5, C29, C30)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from confluent_kafka import KafkaError, KafkaException

from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol import redrive as rules
from lapse_client.error import ConnectionFailed, LapseError, PublishFailed
from lapse_client.kafka.connection import Connection, is_for_people
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.letter_sender import LetterSender
from lapse_client.letters.redrive_line import Line as Line
from lapse_client.letters.redriven import Redriven
from lapse_client.sow.newer_records import NewerRecords

_BATCH = 1_000
"""How many letters one transaction sends, unless a rate asks for fewer."""

_BEFORE = "sent before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters.

    Attributes:
        entity: of this queue or SOW topic; empty = of all.
        reasons: for any of these; empty = for all.
        since_ms: died at this instant or later, ms since the epoch.
        until_ms: died before this instant, ms since the epoch.
        filter: an expression (X1) over payload, headers, key, topic, partition, offset of the original.
        max_redrives: a letter is refused if its message was redriven this often already.
        again: also letters that were sent before (C58).
        overwrite: also where a SOW topic has a newer record of the key (C84).
    """

    entity: str = ""
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    max_redrives: int = rules.MAX_REDRIVES
    again: bool = False
    overwrite: bool = False

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """The letters that are meant.

        Raises:
            ExpressionError: the filter is no expression.
            LapseError: what reads expressions is not installed.
        """
        matches = _compiled(self.filter) if self.filter else None
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
        return -1 if self.letter.origin is None else self.letter.origin.log_offset

    @property
    def timestamp_ms(self) -> int:
        """When it died, ms since the epoch: its own timestamp is not on the letter."""
        return _died_ms(self.letter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the cluster knows of letters, beyond themselves.

    Attributes:
        redriven: what was sent before.
        newer: the records of SOW topics.
        topics: partitions by topic.
    """

    redriven: Redriven
    newer: NewerRecords
    topics: Mapping[str, int]

    @classmethod
    def of(cls, connection: Connection) -> Known:
        """Ask a cluster.

        Raises:
            LapseError: it cannot be asked.
        """
        return cls(redriven=Redriven(connection).read(), newer=NewerRecords(connection), topics=connection.partitions())


def check_target(target: Target, letters: str, connection: Connection) -> None:
    """See that letters can go where they are to go.

    Args:
        target: where.
        letters: the dead-letter topic that they are on.
        connection: the cluster.

    Raises:
        UnknownEntity: there is no such topic.
        LapseError: it is no topic for letters, or the cluster cannot be asked.
    """
    if not target.topic:
        return
    if why := rules.unfit(target.topic, letters):
        raise LapseError(why)
    topics = connection.partitions()
    if target.topic not in topics:
        fit = [name for name in topics if not rules.unfit(name, letters)]
        raise connection.unknown("topic", target.topic, fit, target.topic)


def plan(
    letters: Iterable[DeadLetter], choice: Choice, target: Target, now_ms: int, known: Known | None = None
) -> Iterator[Line]:
    """What a redrive would do, letter by letter; nothing is sent.

    Args:
        letters: what there is.
        choice: which of them.
        target: where they go.
        now_ms: the instant to judge original deadlines by, ms since the epoch.
        known: what the cluster knows of the letters; None = nothing.
    """
    for letter in choice.of(letters):
        origin = letter.origin
        refused = _refusal(letter, choice, target, known)
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
                before=0 if known is None else known.redriven.sent(letter),
                queue=letter.entity if letter.lapse_id and not target.topic else "",
                lifetime=stated,
            ),
            refused=refused,
            deadline_passed=letter.expires_at_ms is not None and letter.expires_at_ms <= now_ms,
        )


def _refusal(letter: DeadLetter, choice: Choice, target: Target, known: Known | None) -> str:
    """Why a letter is not sent; empty = it is."""
    if letter.value is None and not letter.null_value:
        return "no payload"
    if letter.unconfirmed_transfer:
        return "unconfirmed transfer"
    if known is not None and not choice.again and letter in known.redriven:
        return _BEFORE
    if (letter.redriven_count if known is None else known.redriven.times(letter)) >= choice.max_redrives:
        return "loop limit"
    if not target.topic and letter.origin is None:
        return "no origin"
    if known is not None and not target.topic and letter.origin is not None:
        place = letter.origin
        if why := rules.astray(place.topic, place.partition, known.topics):
            return why
    if known is not None and not choice.overwrite and known.newer.is_newer(letter, target.topic or letter.entity):
        return "newer record"
    return ""


def send(
    lines: Iterable[Line],
    connection: Connection,
    *,
    redriven: Redriven,
    queues: LetterQueues | None = None,
    rate: float | None = None,
    sent: Callable[[Line, str], None] = lambda line, error: None,
    copies: Iterable[DeadLetter] = (),
) -> int:
    """Send what is not refused, and wait until all of it is safe.

    Letters are sent in transactions with the records that say so: a run that is killed has sent whole transactions, and
    the next one sends the rest. Of two runs at a time the later one goes on.

    Args:
        lines: the plan.
        connection: the cluster.
        redriven: remembers what is sent.
        queues: where letters that are sent count as settled (C75); None = at queues that are called like their topics.
        rate: the greatest number per second.
        sent: called with each record that is safe, and with each that was not taken, with the error.
        copies: duplicates of letters, which count as settled, too, if theirs was sent; read at the end.

    Returns:
        How many were sent.

    Raises:
        UnknownEntity: there is no such topic.
        PublishFailed: some were not taken; the text counts them. All others are sent.
    """
    topics = connection.partitions()
    pending = list[Line]()
    earlier = list[DeadLetter]()
    done = 0
    began = time.monotonic()
    try:
        redriven.make_topic()
        sender = LetterSender(connection, redriven, queues or LetterQueues(connection), sent)
        size = _BATCH if rate is None else max(1, min(_BATCH, int(rate)))
        for line in lines:
            if line.refused:
                if line.refused == _BEFORE:  # a run that was killed may not have reached the queues
                    earlier.append(line.letter)
                continue
            if line.topic not in topics:
                raise connection.unknown("topic", line.topic, filter(is_for_people, topics), line.topic)
            pending.append(line)
            if len(pending) >= size:
                done += sender.send(pending)
                pending.clear()
                if rate is not None:
                    time.sleep(max(0.0, began + done / rate - time.monotonic()))
        done += sender.send(pending)
        sender.queues.settle([*earlier, *(copy for copy in copies if copy in redriven)])
    except KafkaException as error:
        if error.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            raise LapseError("another `lapse dlq redrive` has begun and goes on; this one ends") from error
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    if sender.untaken:
        line, why = sender.untaken[0]
        raise PublishFailed(line.topic, line.letter.key, why, len(sender.untaken))
    return done


def _died_ms(letter: DeadLetter) -> int:
    return letter.timestamp_ms if letter.expired_at_ms is None else letter.expired_at_ms


def _compiled(text: str) -> Callable[[Any], bool | None]:
    """Compile a filter; only who filters letters needs the parser's package."""
    try:
        from lapse.core.expression import compile_filter
    except ModuleNotFoundError as error:
        raise LapseError(
            f"a filter of letters needs the Python package {error.name}, which is not installed. "
            "Install it with: pip install 'lapse[cli]'"
        ) from error
    return compile_filter(text)
