"""The copier: reads the records of messages in one cluster, and writes them to another in one transaction (Q17)."""

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
from lapse_client.delivery.log_place import LogPlace, MessageSource
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import BEHIND_REFUSAL, FENCED, abort, written_or_refused
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.produced import produce

_PATIENCE_S: Final = 30.0
_TRANSACTION_MS: Final = 10_000
"""How long a killed process's transaction may block the readers of its partitions, ms."""

_LATE_S: Final = 0.5
"""How much later than the following error the refusal of a record may be reported, s."""

_MOST_BYTES: Final = 1_000_000_000
"""The largest record that this client sends, bytes. The brokers know what a topic takes."""


class TransferError(RuntimeError):
    """A transfer that cannot go on; the text says what to do."""


class TakenOver(TransferError):
    """Another process does the same work, and began later.

    Args:
        transfer: id of the transfer that this process did.
    """

    def __init__(self, transfer: str) -> None:
        super().__init__(f"another process has taken over the transfer {transfer}")


class NotRead(TransferError):
    """The queue that takes over has not read its records in time. They are safe; a later try finds them read."""


class Put(NamedTuple):
    """The result of a put.

    Attributes:
        pairs: each message, and its record in the other deployment.
        lost: messages whose records Kafka no longer has.
        foreign: messages from other queues, which `only_from` excludes.
        too_large: messages that are too large for the target topic.
    """

    pairs: list[tuple[Bookmark, Bookmark]]
    lost: list[Bookmark]
    foreign: list[Bookmark]
    too_large: list[Bookmark]


class Copier:
    """Copies records from one cluster to another.

    Args:
        source: the cluster that hands over.
        target: the cluster that takes over.
        queue: the queue there.
        topic: its underlying topic.
        partitions: the number of partitions of that topic.
        transfer: the transfer's id.
        cluster: id of the source's cluster. With the transfer's id it names the transactions, so that of two processes
            with one transfer only the later one goes on.
        origin: queue and cluster that hand over, as text.
        work: names the transactions instead of the transfer's id, if several transfers are one work.

    Attributes:
        only_from: put only messages that came from this queue and cluster; empty for all messages.
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
        self._places: dict[tuple[str, int], LogPlace[Sequence[Message]]] = {}
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
            place.close()

    def put(self, messages: Iterable[QueuedMessage]) -> Put:
        """Put the records of messages on the target topic, all or none.

        Args:
            messages: the messages, which are held.

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
            # Perhaps only the batch is too large, because brokers check its size. So send the records one by one.
            one_by_one = True

    def _transact(self, messages: Sequence[QueuedMessage], one_by_one: bool) -> Put:
        """Put records in one transaction. If one of them is too large for the topic, abort it.

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
            if fault.code() in FENCED:
                raise TakenOver(self._transfer) from error
            written_or_refused(self._producer, put.too_large, _LATE_S)  # to learn which message it is
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
            # A producer there would choose the same partition for the key.
            partition = bookmark.partition
        elif key is None:
            partition = bookmark.partition % self._partitions
        else:
            partition = (murmur2(_bytes(key)) & 0x7FFFFFFF) % self._partitions

        def reported(error: KafkaError | None, written: Message) -> None:
            if error is None:
                target = Bookmark(self._topic, written.partition() or 0, written.offset() or 0)
                put.pairs.append((bookmark, target))
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                put.too_large.append(bookmark)

        more = {"partition": partition, "headers": headers, "on_delivery": reported}
        produce(self._producer, self._topic, record.value(), key, **more)

    def _read(self, bookmark: Bookmark) -> Message | None:
        where = (bookmark.topic, bookmark.partition)
        place = self._places.get(where)
        if place is None:
            source = MessageSource(*where, self._source.consumer(enable_partition_eof=True))
            place = self._places[where] = LogPlace(bookmark.topic, source, self._stopping)
        found = place.read(BookmarkRange(*where, bookmark.offset, bookmark.offset))
        return found[0][0] if found else None


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
