"""Reads the definitions topic to its end, and tells whether a change is there that Kafka has not finished (Q23)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from lapse.runtime.topics.topology import TopologyError

_FETCH_WAIT_MS: Final = 20
"""How long a broker may wait before it answers that a topic has no more records, ms; the default is half a second."""

_PATIENCE_S: Final = 15.0

_ABSENT: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
"""Errors that mean that a topic does not exist."""

_AWAY: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Errors that mean that no leader of the topic answers for now."""


class DefinitionsAway(TopologyError):
    """No broker that leads the topic answers. That may be temporary."""


class Contents(NamedTuple):
    """The committed records of the topic.

    Attributes:
        found: the encoded definitions, by entity.
        offsets: the offset of the last record of each entity.
        open_from: where a transaction begins that is neither committed nor aborted, so that what is behind it cannot be
            read; None if there is none.
    """

    found: dict[str, bytes]
    offsets: dict[str, int]
    open_from: int | None


class DefinitionsReader:
    """Reads the topic from its beginning; for `with`.

    Args:
        name: the topic.
        settings: librdkafka's settings: brokers and security.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._tp = TopicPartition(name, 0, OFFSET_BEGINNING)
        self._found: dict[str, bytes] = {}
        self._offsets: dict[str, int] = {}
        self._busy = threading.Lock()
        self._next = 0
        self._end = -1
        """The end as of the last answer about it. It is the beginning of the first open transaction."""
        self._consumer = Consumer(
            {
                **settings,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # the topic was created again meanwhile: what was read does not count
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )

    def __enter__(self) -> DefinitionsReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, once a thread that reads has finished."""
        with self._busy:
            self._consumer.close()

    def is_there(self) -> bool:
        """Return whether the topic exists.

        Raises:
            TopologyError: we may not see it, or no broker answers.
        """
        try:
            with self._busy:
                absence = self._absence()
            if absence is not None and absence.code() in _ABSENT:
                return False
            if absence is not None:
                raise KafkaException(absence)
        except KafkaException as error:
            raise self._fault(error) from error
        return True

    def _absence(self) -> KafkaError | None:
        """Return why the topic cannot be seen; None if it can be."""
        # Ask for it by name: a list of all topics leaves out those that we may not see.
        absence: KafkaError | None = (
            self._consumer.list_topics(self._name, timeout=_PATIENCE_S).topics[self._name].error
        )
        return absence

    def read(self, beyond: int = -1) -> Contents:
        """Read on to the end, as it is from now on.

        Args:
            beyond: wait until the record at this offset can be read, or is aborted.

        Raises:
            TopologyError: the topic cannot be read, or not that far in time.
        """
        with self._busy:
            return self._read(beyond)

    def _read(self, beyond: int) -> Contents:
        try:
            if not self._consumer.assignment():
                self._absence()  # librdkafka reads an unknown topic only when it looks again, half a second later
                self._consumer.assign([self._tp])
            elif beyond < 0:  # librdkafka reports an end again only if it begins to read anew
                self._end = -1
                self._consumer.assign([TopicPartition(self._name, 0, self._next)])
            give_up = time.monotonic() + _PATIENCE_S
            while time.monotonic() < give_up:
                if self._end > beyond and self._next >= self._end:
                    return Contents(dict(self._found), dict(self._offsets), self._open_from())
                self._take()
        except KafkaException as error:
            raise self._fault(error) from error
        raise DefinitionsAway(f"{self._name}: could not be read to its end within {_PATIENCE_S:g} s")

    def _take(self) -> None:
        """Process one record, or the message that there is no further one now."""
        message = self._consumer.poll(0.2)
        if message is None:
            return
        offset = message.offset() or 0
        if (failure := message.error()) is None:
            self._offsets[note(self._found, message.key(), message.value()) or ""] = offset
            self._next = offset + 1
        elif failure.code() == KafkaError._PARTITION_EOF:
            self._next = self._end = offset
        elif failure.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # librdkafka; no group is needed
            raise KafkaException(failure)

    def _open_from(self) -> int | None:
        _, end = self._consumer.get_watermark_offsets(self._tp, cached=True)  # with the records of open transactions
        return self._end if end > self._end else None

    def _fault(self, error: KafkaException) -> TopologyError:
        failure = error.args[0]
        if failure.code() in _AWAY:
            return DefinitionsAway(f"{self._name}: cannot be read now: {failure.str()}")
        if failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # An assignment shows that we have the right Describe.
            lacked = "Read" if self._consumer.assignment() else "Describe"
            return TopologyError(f"{self._name}: we lack the right {lacked} on it: have it granted")
        return TopologyError(f"{self._name}: cannot be read: {failure.str()}")


def note(found: dict[str, bytes], key: object, value: object) -> str | None:
    """Put a record into `found`, behind all earlier ones; one of its entity is dropped.

    So the order is that of the latest records. Of definitions that conflict, each worker leaves out the same.

    Returns:
        The entity; None if the record names none.
    """
    if not isinstance(key, bytes):
        return None
    name = key.decode("utf-8", "replace")
    found.pop(name, None)
    if isinstance(value, bytes):
        found[name] = value
    return name
