"""Copier: the records behind messages that are handed over, read here and put there in one transaction (Q17)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.partitioner import murmur2
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lapse.core.transfer_counts import Counts
from lapse.protocol import hand_over, header
from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse_client.delivery.referenced import LogPlace
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import BEHIND_REFUSAL, abort, written_or_refused
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.produced import produce

_PATIENCE_S: Final = 30.0
_TRANSACTION_MS: Final = 10_000
"""A transaction that a killed process leaves behind holds up the readers of its partitions for so long."""

_LATE_S: Final = 0.5
"""How much later than its consequence it may be told that a record was refused."""

_MOST_BYTES: Final = 1_000_000_000
"""Largest record that this client sends: what a topic takes, its brokers say."""

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class TransferError(RuntimeError):
    """A transfer that cannot go on; the text says what to do."""


class TakenOver(TransferError):
    """Another process does the same work, and began later."""


class Put(NamedTuple):
    """What was put.

    Attributes:
        pairs: each message, and the record that may take its place.
        lost: messages whose records Kafka no longer has.
        foreign: messages that came from elsewhere, and shall only go back there.
        too_large: messages that are larger than the topic there takes.
    """

    pairs: list[tuple[Bookmark, Bookmark]]
    lost: list[Bookmark]
    foreign: list[Bookmark]
    too_large: list[Bookmark]


class Copier:
    """Carries records from one cluster to another.

    Args:
        source: the cluster that hands over.
        target: the cluster that takes over.
        queue: the queue there.
        topic: its underlying topic.
        partitions: how many partitions that topic has.
        transfer: the transfer's id.
        cluster: id of the source's cluster; with the transfer's id it names the transactions, so that of two processes
            on one transfer only the later one goes on.
        origin: which queue of which cluster hands over.
        work: what they are named by in place of the transfer's id, where several transfers are one work.

    Attributes:
        only_from: the queue and cluster from which messages must have come that are put; empty = from anywhere.
    """

    def __init__(
        self,
        source: Connection,
        target: Connection,
        queue: str,
        topic: str,
        partitions: int,
        transfer: str,
        cluster: str,
        origin: str = "",
        work: str = "",
    ) -> None:
        self._source = source
        self._queue = queue
        self._origin = origin
        self.only_from = ""
        self._topic = topic
        self._partitions = partitions
        self._transfer = transfer
        self._places: dict[tuple[str, int], LogPlace] = {}
        self._stopping = threading.Event()
        self._producer: Producer = target.producer(
            transactional_id=f"lapse-transfer-{cluster}-{work or transfer}",
            transaction_timeout_ms=_TRANSACTION_MS,
            linger_ms=1,
            message_max_bytes=_MOST_BYTES,
        )
        self._producer.init_transactions(_PATIENCE_S)
        self._breadths = source.partitions()

    def close(self) -> None:
        """Close the consumers."""
        for place in self._places.values():
            place.consumer.close()

    def put(self, messages: Iterable[QueuedMessage]) -> Put:
        """Put the records of messages on the destination's topic, all or none.

        Args:
            messages: what is held.

        Raises:
            TransferError: another process has taken over the transfer.
            KafkaException: one of the clusters does not answer.
        """
        wanted, one_by_one = sorted(messages, key=lambda one: Bookmark.parse(one.bookmark)), False
        too_large: list[Bookmark] = []
        is_behind_refusal = False
        while True:
            try:
                put = self._transact(wanted, one_by_one)
            except KafkaException as error:
                if not is_behind_refusal or error.args[0].code() not in BEHIND_REFUSAL:
                    raise
                abort(self._producer, _PATIENCE_S)
                is_behind_refusal = False
                continue
            is_behind_refusal = bool(put.too_large)
            if not put.too_large:
                put.too_large.extend(too_large)
                return put
            if one_by_one:
                too_large += put.too_large
                refused = {str(one) for one in put.too_large}
                wanted = [one for one in wanted if one.bookmark not in refused]
            # At first it may only be the batch that is too large: the brokers count the records that come together.
            one_by_one = True

    def _transact(self, messages: Sequence[QueuedMessage], one_by_one: bool) -> Put:
        """Put records in one transaction; if the topic takes any of them not, for its size, nothing is put.

        Raises:
            TransferError: another process has taken over the transfer.
            KafkaException: one of the clusters does not answer.
        """
        put = Put([], [], [], [])
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._send(message, put)
                if one_by_one:
                    written_or_refused(self._producer, put.too_large, _PATIENCE_S)
                    if put.too_large:
                        break
            written_or_refused(self._producer, put.too_large, _PATIENCE_S)
            if put.too_large:
                abort(self._producer, _PATIENCE_S)
            else:
                self._producer.commit_transaction(_PATIENCE_S)
        except KafkaException as error:
            fault = error.args[0]
            if fault.code() in _FENCED:
                raise TakenOver(f"another process has taken over the transfer {self._transfer}") from error
            written_or_refused(self._producer, put.too_large, _LATE_S)  # so that it is known which message it is
            if not put.too_large:
                raise
            abort(self._producer, _PATIENCE_S)
        except BaseException:
            abort(self._producer, _PATIENCE_S)
            raise
        return put

    def _send(self, message: QueuedMessage, put: Put) -> None:
        bookmark = Bookmark.parse(message.bookmark)
        record = self._read(bookmark)
        if record is None:
            put.lost.append(bookmark)
            return
        if self.only_from and (header.TRANSFER_FROM, self.only_from.encode()) not in headers_of(record):
            put.foreign.append(bookmark)
            return
        key = record.key()
        headers: Any = hand_over.headers(
            headers_of(record),
            self._queue,
            self._transfer,
            message.expires_at_ms,
            message.until_ms,
            Counts(message.delivery_count, message.cancel_count),
            self._origin,
        )
        if self._breadths.get(bookmark.topic) == self._partitions:
            # Where the message has its key, a producer there would put it as well.
            partition = bookmark.partition
        elif key is None:
            partition = bookmark.partition % self._partitions
        else:
            partition = (murmur2(_bytes(key)) & 0x7FFFFFFF) % self._partitions

        def reported(error: KafkaError | None, written: Message) -> None:
            if error is None:
                place = Bookmark(self._topic, written.partition() or 0, written.offset() or 0)
                put.pairs.append((bookmark, place))
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                put.too_large.append(bookmark)

        more = {"partition": partition, "headers": headers, "on_delivery": reported}
        produce(self._producer, self._topic, record.value(), key, **more)

    def _read(self, bookmark: Bookmark) -> Message | None:
        where = (bookmark.topic, bookmark.partition)
        place = self._places.get(where)
        if place is None:
            consumer = self._source.consumer(enable_partition_eof=True)
            place = self._places[where] = LogPlace(*where, consumer, self._stopping)
        found = place.read(BookmarkRange(*where, bookmark.offset, bookmark.offset))
        return found[0] if found else None


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
