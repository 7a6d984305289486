"""Redrive: it sends dead letters back to their topics, or to another topic (D5, C29, C30)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import KafkaException

from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol import redrive as rules
from lapse_client.error import ConnectionFailed, LapseError, PublishFailed
from lapse_client.kafka.connection import Connection, is_for_people
from lapse_client.kafka.fault import FENCED, LACKS_RIGHT
from lapse_client.letters import letter_topic, unfinished_redrive
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.letter_sender import LetterSender
from lapse_client.letters.redrive_line import Line as Line
from lapse_client.letters.redrive_target import Target as Target
from lapse_client.letters.redriven import TOPIC, Redriven
from lapse_client.reading.definitions import Definitions
from lapse_client.reading.underlying import reads_others_only
from lapse_client.sow.newer_records import NewerRecords

_BATCH = 1_000
"""The most letters in one transaction. A low rate makes transactions smaller."""

_KEPT_S = 1.0
"""For how long it counts that a queue was not deleted, in seconds."""

_BEFORE = "sent before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of dead letters.

    Attributes:
        entity: choose letters of this queue or SOW topic; empty = all.
        reasons: choose letters with any of these reasons; empty = all.
        since_ms: choose letters whose messages left at this instant or later, ms since the epoch.
        until_ms: choose letters whose messages left before this instant, ms since the epoch.
        filter: an expression (X1) over payload, headers, key, topic, partition and offset of the original.
        max_redrives: refuse a letter whose message was redriven this often already.
        again: whether to send letters that were sent before (C58).
        overwrite: whether to send letters for whose key a SOW topic has a newer record (C84).
        payloads: by queue or SOW topic, what reads its payloads for the filter if they are not JSON. It raises
            ValueError for a payload that it cannot read.
    """

    entity: str = ""
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    max_redrives: int = rules.MAX_REDRIVES
    again: bool = False
    overwrite: bool = False
    payloads: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the chosen letters.

        Raises:
            ExpressionError: the filter is not valid.
            LapseError: the package that parses expressions is not installed.
        """
        matches = _compiled(self.filter) if self.filter else None
        for letter in letters:
            if (
                (not self.entity or letter.entity == self.entity)
                and (not self.reasons or not self.reasons.isdisjoint(letter.reasons))
                and (self.since_ms is None or letter.died_ms >= self.since_ms)
                and (self.until_ms is None or letter.died_ms < self.until_ms)
                and (matches is None or matches(Original(letter, self.payloads.get(letter.entity, orjson.loads))))
            ):
                yield letter


class Original:
    """A dead letter's original message, for expressions.

    Args:
        letter: the letter.
        parse: reads its payload; raises ValueError if it cannot.
    """

    __slots__ = ("_parse", "letter")

    def __init__(self, letter: DeadLetter, parse: Callable[[bytes], object] = orjson.loads) -> None:
        self.letter = letter
        self._parse = parse

    @property
    def payload(self) -> object:
        """The payload; None if it cannot be read."""
        try:
            return None if self.letter.value is None else self._parse(self.letter.value)
        except ValueError:
            return None

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers by name; of a repeated name the last one."""
        return {name: value for name, value in self.letter.headers if value is not None}

    @property
    def key(self) -> bytes | None:
        """The key."""
        return self.letter.key

    @property
    def topic(self) -> str:
        """Topic of the original message; empty if unknown."""
        return "" if self.letter.origin is None else self.letter.origin.topic

    @property
    def partition(self) -> int:
        """Partition of the original message; -1 if unknown."""
        return -1 if self.letter.origin is None else self.letter.origin.partition

    @property
    def offset(self) -> int:
        """Offset of the original message; -1 if unknown."""
        return -1 if self.letter.origin is None else self.letter.origin.log_offset

    @property
    def timestamp_ms(self) -> int:
        """When the message left, ms since the epoch, because its own timestamp is not in the letter."""
        return self.letter.died_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The state of the cluster by which a redrive judges letters.

    Attributes:
        redriven: the letters that were sent before.
        newer: the current records of SOW topics.
        topics: numbers of partitions by topic.
        is_removed: whether a queue or SOW topic was deleted.
        reads_others_only: whether a queue or SOW topic is defined, and does not read a topic.
    """

    redriven: Redriven
    newer: NewerRecords
    topics: Mapping[str, int]
    is_removed: Callable[[str], bool]
    reads_others_only: Callable[[str, str], bool]

    @classmethod
    def of(cls, connection: Connection, definitions: Definitions | None = None) -> Known:
        """Read the state of a cluster.

        Args:
            connection: connection to the cluster.
            definitions: the definitions of its deployments, if they are known already.

        Raises:
            LapseError: the cluster cannot be reached, or a topic cannot be read.
        """
        topics = connection.partitions()
        return cls(
            redriven=Redriven(connection).read(),
            newer=NewerRecords(connection),
            topics=topics,
            is_removed=_asked_again(connection.is_removed),
            reads_others_only=reads_others_only(definitions or Definitions(connection, topics)),
        )


def _asked_again(is_removed: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return what keeps each answer for a second: a slow redrive may outlive the queue to which it sends."""
    known = dict[str, tuple[bool, float]]()

    def answer(entity: str) -> bool:
        found, until_s = known.get(entity, (False, 0.0))
        if time.monotonic() >= until_s:
            found = is_removed(entity)
            known[entity] = found, time.monotonic() + _KEPT_S
        return found

    return answer


def check_target(
    target: Target,
    letters: str,
    connection: Connection,
    letter_topics: Collection[str] = (),
    definitions: Definitions | None = None,
) -> None:
    """Check that letters may be sent to the target.

    Args:
        target: the target of the redrive.
        letters: the dead-letter topic of the letters.
        connection: connection to the cluster.
        letter_topics: dead-letter topics that neither their names nor definitions show.
        definitions: the definitions of the cluster's deployments, if they are known already.

    Raises:
        UnknownEntity: the target topic does not exist.
        LapseError: letters must not be sent to the target topic, or the cluster cannot be reached.
    """
    if not target.topic:
        return
    topics = connection.partitions()
    known = {*letter_topics, *letter_topic.all_named(definitions or Definitions(connection, topics)).values()}
    if why := rules.target_fault(target.topic, letters, known):
        raise LapseError(why)
    if target.topic not in topics:
        fit = [name for name in topics if not rules.target_fault(name, letters, known)]
        raise connection.unknown("topic", target.topic, fit, target.topic)


def plan(
    letters: Iterable[DeadLetter], choice: Choice, target: Target, now_ms: int, known: Known | None = None
) -> Iterator[Line]:
    """Yield what a redrive would do with each chosen letter. Nothing is sent.

    Args:
        letters: the letters to choose from.
        choice: the choice of letters.
        target: the target of the redrive.
        now_ms: the instant by which original deadlines are judged, ms since the epoch.
        known: state of the cluster; None = checks that need it are left out.
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
    """Return why a letter is not sent; empty if it is sent."""
    if letter.value is None and not letter.null_value:
        return "no payload"
    if letter.unconfirmed_transfer:
        return "unconfirmed transfer"
    if known is not None and not choice.again and letter in known.redriven:
        return _BEFORE
    if (letter.redriven_count if known is None else known.redriven.times(letter)) >= choice.max_redrives:
        return "loop limit"
    if target.topic and rules.target_fault(target.topic):
        return rules.NO_TARGET
    if not target.topic and letter.origin is None:
        return "no origin"
    if known is not None and not target.topic and letter.origin is not None:
        place = letter.origin
        if why := rules.partition_fault(place.topic, place.partition, known.topics):
            return why
        if letter.lapse_id and letter.entity and known.is_removed(letter.entity):
            return rules.NO_ENTITY
        if letter.lapse_id and letter.entity and known.reads_others_only(letter.entity, place.topic):
            return rules.NOT_READ
    # Another system's letter has no id of lapse, and returns to its topic for everybody.
    for_all = target.topic or ("" if letter.lapse_id or letter.origin is None else letter.origin.topic)
    if known is not None and not choice.overwrite and known.newer.is_newer(letter, for_all):
        return "newer record"
    return ""


def send(
    lines: Iterable[Line],
    connection: Connection,
    *,
    letters: str,
    redriven: Redriven,
    queues: LetterQueues | None = None,
    rate: float | None = None,
    sent: Callable[[Line, str], None] = lambda line, error: None,
    copies: Iterable[DeadLetter] = (),
    end_unfinished: bool = False,
) -> int:
    """Send the letters that are not refused, and wait until Kafka has all of them.

    Letters are sent in transactions with the records that note it. So a killed run has sent whole transactions, and
    the next run sends the rest. If two runs with the same letters overlap, the later one fences the earlier one.

    Args:
        lines: lines of the plan. They should come from the generator that `plan` returns, so that letters that another
            run has sent meanwhile are refused.
        connection: connection to the cluster.
        letters: the dead-letter topic of the letters.
        redriven: notes the letters that are sent; the same object as in the plan's `known`.
        queues: acknowledges letters that are sent (C75); None = at queues with the names of their topics.
        rate: the most letters per second; None = no limit.
        sent: called with each line, and with an empty text if its letter is committed, else with the error.
        copies: duplicates of letters, read at the end. They are acknowledged, too, if their letter was sent.
        end_unfinished: whether a redrive by Spark that has not ended counts as ended. Letters that it has sent without
            a note are sent twice.

    Returns:
        The number of letters that were sent.

    Raises:
        LapseError: a redrive by Spark has begun to send letters of this topic, and has not ended.
        UnknownEntity: a target topic does not exist.
        PublishFailed: Kafka refused some letters; the text has their number. All others are sent.
    """
    topics = connection.partitions()
    if TOPIC not in topics and connection.unseen([TOPIC]):
        raise _lacking_right(f"it may not see {TOPIC}, if it is there")
    if not end_unfinished:  # before other redrives are ended for nothing
        unfinished_redrive.refuse(redriven.unfinished(letters))
    try:
        redriven.make_topic()
        sender = LetterSender(connection, redriven, queues or LetterQueues(connection), sent, letters=letters)
        # The sender has ended other runs with these letters. They may have sent some since the plan was begun (C58).
        redriven.read(whole=True)
        if end_unfinished:
            sender.end(redriven.unfinished(letters))
        unfinished_redrive.refuse(redriven.unfinished(letters))
        done = _send_in_batches(_known_targets(lines, topics, connection), sender, rate)
        sender.queues.settle([copy for copy in copies if copy in redriven])
    except KafkaException as error:
        raise failure(error, connection) from error
    if sender.untaken:
        line, why = sender.untaken[0]
        raise PublishFailed(line.topic, line.letter.key, why, len(sender.untaken))
    return done


def _known_targets(lines: Iterable[Line], topics: Mapping[str, int], connection: Connection) -> Iterator[Line]:
    """Yield the lines of a plan, and stop at a letter whose topic does not exist.

    Raises:
        UnknownEntity: a target topic does not exist.
    """
    for line in lines:
        if not line.refused and line.topic not in topics:
            raise connection.unknown("topic", line.topic, filter(is_for_people, topics), line.topic)
        yield line


def _send_in_batches(lines: Iterable[Line], sender: LetterSender, rate: float | None) -> int:
    """Send what is not refused, at most `rate` letters per second. Return the number of letters that were sent.

    Letters that an earlier run has sent are acknowledged at their queues, because that run may have been killed before.
    """
    size = _BATCH if rate is None else max(1, min(_BATCH, int(rate)))
    began = time.monotonic()
    pending, earlier = list[Line](), list[DeadLetter]()
    done = 0
    for line in lines:
        if line.refused:
            if line.refused == _BEFORE:
                earlier.append(line.letter)
                if len(earlier) == _BATCH:
                    sender.queues.settle(earlier)
                    earlier.clear()
            continue
        pending.append(line)
        if len(pending) >= size:
            done += sender.send(pending)
            pending.clear()
            if rate is not None:
                time.sleep(max(0.0, began + done / rate - time.monotonic()))
    done += sender.send(pending)
    sender.queues.settle(earlier)
    return done


def failure(error: KafkaException, connection: Connection) -> LapseError:
    """Return the error of a redrive that Kafka has ended: overtaken, without a right, or without a broker."""
    code = error.args[0].code()
    if code in FENCED:
        return LapseError("another redrive of the same dead-letter topic has begun and goes on; this one ends")
    if code in LACKS_RIGHT:
        return _lacking_right(error.args[0].str().rstrip("."))
    return ConnectionFailed(connection.bootstrap_servers, error)


def _lacking_right(why: str) -> LapseError:
    return LapseError(
        f"Kafka refuses this user: {why}. Have granted what a redrive takes: Create, Read and Write on the topic "
        f"{TOPIC}, Write on the transactional ids that begin with that name, and Write on the targets"
    )


def _compiled(text: str) -> Callable[[Any], bool | None]:
    """Compile a filter. The parser's package is imported here, because only filters need it."""
    try:
        from lapse.core.expression import compile_filter
    except ModuleNotFoundError as error:
        raise LapseError(
            f"a filter of letters needs the Python package {error.name}, which is not installed. "
            "Install it with: pip install 'lapse[cli]'"
        ) from error
    return compile_filter(text)
