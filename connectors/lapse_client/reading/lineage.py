"""Lineage: the predecessors and successors of a message (C59).

The message id of a forwarded or redriven record names the message before it. The commands of a transfer name both. A
newer version of a SOW record comes after the older one, under the same key. A dead letter names its message, and may
itself be a message of a queue over the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import orjson
from confluent_kafka import Message

from lapse.core.letter import FORWARDED, is_letter
from lapse.protocol import command as commands
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import CommandError
from lapse.protocol.hand_over import HandOver
from lapse.protocol.redrive import REDRIVEN, message_id, parse_message_id
from lapse_client.kafka.connection import Connection, entities
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import read
from lapse_client.letters.redriven import TOPIC as REDRIVEN_TOPIC

_MARGIN_MS: Final = 60_000
"""The longest time between a record and the records that name it, in ms. After a crash they may be written twice."""

_OWN: Final = (topic.PREFIX, topic.DEAD_LETTER_PREFIX, "__")
LETTERED: Final = "left_as_letter"
Progress = Callable[[int, int], None]


class Step(NamedTuple):
    """One step from a message to the next.

    Attributes:
        what: `forwarded`, `redriven`, `transferred`, `replaced`, or `left_as_letter`.
        at_ms: when the later record was written, ms since the epoch.
        entity: the queue that the message left, or its SOW topic.
        before: bookmark of the earlier record.
        after: bookmark of the later record.
        cluster: id of the Kafka cluster of `after`, if that is another one; else empty.
        detail: id of the letter or transfer.
    """

    what: str
    at_ms: int
    entity: str
    before: Bookmark
    after: Bookmark
    cluster: str = ""
    detail: str = ""


class Lineage:
    """Finds the steps that lead to a message and away from it.

    Args:
        connection: connection to the cluster.
        cluster: id of the cluster.
        topics: topics of the cluster with their numbers of partitions.
        progress: called with the number of offsets read, and of all.
    """

    def __init__(self, connection: Connection, cluster: str, topics: Mapping[str, int], progress: Progress) -> None:
        self._connection = connection
        self._cluster = cluster
        self._topics = topics
        self._progress = progress

    def origin(self, bookmark: Bookmark, record: Message) -> Iterator[Step]:
        """Yield the steps to a record from its predecessors, by its headers."""
        headers = {name: value for name, value in headers_of(record) if value is not None}
        at_ms = record.timestamp()[1]
        yield from _letter_steps(record, headers, bookmark, at_ms)
        if is_letter(headers_of(record)):
            return  # its message id is a copy of its message's
        if header.TRANSFER in headers:
            # Its message id is a copy of the predecessor's.
            transfer = headers[header.TRANSFER].decode("utf-8", "replace").partition("/")[2]
            yield from self._transferred(entities(self._topics, sow=False), transfer, bookmark, at_ms, back=True)
            return
        name = headers.get(header.MESSAGE_ID, b"")
        if name.startswith(FORWARDED):
            yield from _step_of_id("forwarded", name[len(FORWARDED) :], at_ms, bookmark)
        elif name.startswith(REDRIVEN):
            sent = parse_message_id(name.decode("utf-8", "replace")).encode()
            yield from _step_of_id("redriven", sent, at_ms, bookmark)

    def forwarded(self, bookmark: Bookmark, queue: str, at_ms: int) -> Iterator[Step]:
        """Yield the step from a message that a queue forwarded at `at_ms`."""
        start = FORWARDED + f"{queue}/{bookmark}/".encode()
        found = self._written(lambda name: name.startswith(start), at_ms)
        if found is not None:
            yield Step("forwarded", found.timestamp()[1], queue, bookmark, place(found))

    def letter_step(self, bookmark: Bookmark, entity: str, letter: Bookmark, at_ms: int) -> Iterator[Step]:
        """Yield the step from a message to its letter, if a queue has the name of the letter's topic."""
        if topic.commands(letter.topic) in self._topics:
            yield Step(LETTERED, at_ms, entity, bookmark, letter)

    def redriven(self, bookmark: Bookmark, entity: str, lapse_id: str) -> Iterator[Step]:
        """Yield the steps from a message whose letter was redriven."""
        if REDRIVEN_TOPIC not in self._topics:
            return
        for noted in self._span([REDRIVEN_TOPIC]):
            note = noted.value()
            if noted.key() == lapse_id.encode() and note:
                try:
                    name = message_id(lapse_id, int(orjson.loads(note)["times"]) - 1).encode()
                except (ValueError, TypeError, KeyError):
                    continue  # not a note of a redrive
                found = self._written(name.__eq__, noted.timestamp()[1])
                if found is not None:
                    yield Step("redriven", found.timestamp()[1], entity, bookmark, place(found), detail=lapse_id)

    def transferred(self, bookmark: Bookmark, queue: str, transfer: str, at_ms: int) -> Iterator[Step]:
        """Yield the step from a message that a queue handed over at `at_ms`."""
        return self._transferred([queue], transfer, bookmark, at_ms, back=False)

    def versions(
        self, bookmark: Bookmark, record: Message | None, of: Iterable[str], ended: Container[str] = ()
    ) -> Iterator[Step]:
        """Yield the steps to the older and the newer version of a SOW record, if they are known.

        The state topic has only the last of the versions that came in one step, and compaction removes more of them.
        Such a version is found between its neighbours there by its Kafka key, but its entity must not be among those
        where the message `ended`.
        """
        at_ms = 0 if record is None else record.timestamp()[1]
        for entity in of:
            name = topic.sow(entity)
            if name not in self._topics:
                continue
            key = None if record is None or record.value() is None or entity in ended else record.key()
            before: dict[bytes, Bookmark | None] = {}
            mine: Bookmark | None = None
            for message in self._span([name]):
                facts = {title: value for title, value in headers_of(message) if value is not None}
                own = message.key() or b""
                version = Bookmark.parse_stated(facts.get(header.BOOKMARK)) if message.value() is not None else None
                if version == bookmark:
                    mine, key = version, own
                    older = before.get(own)
                    if older is not None and older != bookmark:
                        yield Step("replaced", message.timestamp()[1], entity, older, bookmark)
                elif mine is not None and own == key:
                    if version is not None:
                        yield Step("replaced", message.timestamp()[1], entity, bookmark, version)
                    break
                elif mine is None and own == key and version is not None and _is_behind(version, bookmark):
                    older = before.get(own)
                    if older is not None and _is_behind(bookmark, older):
                        yield Step("replaced", at_ms, entity, older, bookmark)
                    yield Step("replaced", message.timestamp()[1], entity, bookmark, version)
                    break
                before[own] = version

    def _transferred(
        self, queues: Iterable[str], transfer: str, bookmark: Bookmark, at_ms: int, *, back: bool
    ) -> Iterator[Step]:
        """Yield the step of a message in a transfer, by the transfer's commands."""
        of = {topic.commands(queue): queue for queue in queues}
        target: dict[str, str] = {}
        for message in self._span(of, at_ms - _MARGIN_MS):
            try:
                command, _ = commands.decode(message.value())
            except CommandError:
                continue
            if command.transfer != transfer:
                continue
            queue = of[message.topic() or ""]
            if command.command == "transfer" and command.to:
                target[queue] = command.to.rpartition(" at ")[2]
            elif command.command == "transfer_confirm":
                for one in filter(None, map(_parse_confirmation, command.bookmarks)):
                    other = one.message_of(bookmark) if back else one.record_of(bookmark)
                    if other is not None:
                        here, there = (other, bookmark) if back else (bookmark, other)
                        cluster = target.get(queue, "")
                        elsewhere = "" if cluster == self._cluster else cluster
                        yield Step("transferred", message.timestamp()[1], queue, here, there, elsewhere, transfer)
                        return

    def _written(self, meant: Callable[[bytes], bool], at_ms: int) -> Message | None:
        """Return the record written at about `at_ms` whose message id fulfils `meant`; None if there is none."""
        names = [
            name for name in self._topics if not name.startswith(_OWN) and not name.endswith(topic.CHANGELOG_SUFFIX)
        ]
        for message in self._span(names, at_ms - _MARGIN_MS, at_ms + _MARGIN_MS):
            headers = {name: value for name, value in headers_of(message) if value is not None}
            is_copy = header.TRANSFER in headers or is_letter(headers_of(message))
            if not is_copy and meant(headers.get(header.MESSAGE_ID, b"")):
                return message
        return None

    def _span(
        self, names: Iterable[str], since_ms: int | None = None, until_ms: int | None = None
    ) -> Iterator[Message]:
        topics = {name: self._topics[name] for name in names if name in self._topics}
        return span(self._connection, topics, since_ms, lambda _: until_ms, self._progress, listed=True)


def place(message: Message) -> Bookmark:
    """Return the bookmark of a record."""
    return Bookmark(message.topic() or "", message.partition() or 0, message.offset() or 0)


def _letter_steps(record: Message, headers: Mapping[str, bytes], bookmark: Bookmark, at_ms: int) -> Iterator[Step]:
    """Yield the step from a message to its letter; for a letter's letter also the step from the first message."""
    letter = read(record)
    if letter.origin is None:
        return
    yield Step(LETTERED, at_ms, letter.entity, letter.origin, bookmark)
    for step in _step_of_id(LETTERED, headers.get(header.FIRST_NAMES[header.LAPSE_ID], b""), at_ms, letter.origin):
        yield step._replace(detail="")


def _step_of_id(what: str, name: bytes, at_ms: int, after: Bookmark) -> Iterator[Step]:
    """Yield the step in an id `entity/topic:partition:offset/number`; nothing if it has another form."""
    text = name.decode("utf-8", "replace")
    entity, _, rest = text.partition("/")
    try:
        before = Bookmark.parse(rest.rpartition("/")[0])
    except ValueError:
        return
    yield Step(what, at_ms, entity, before, after, detail=text if what == "redriven" else "")


def _parse_confirmation(text: str) -> HandOver | None:
    """Parse a confirmation; None if it is none. Any client may write one, so its ranges are never iterated over."""
    try:
        return HandOver.parse(text)
    except ValueError:
        return None


def _is_behind(version: Bookmark, bookmark: Bookmark) -> bool:
    return version[:2] == bookmark[:2] and version.offset > bookmark.offset
