"""A consumer of one partition that reads records into columns, by librdkafka's own functions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from ctypes import byref, c_int64, c_void_p
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from lapse_client.kafka import rdkafka
from lapse_client.kafka.rdkafka import Message, RdKafka
from lapse_client.kafka.record_columns import HeldMessages, RecordColumns, Room

_AT_ONCE: Final = 2_000
"""How many records are read at once."""

_LOGGER: Final = "logger"
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_TEXT_BYTES: Final = 512


class Fault(NamedTuple):
    """An error that came in the place of a record.

    Attributes:
        error: the error.
        offset: the offset that came with it.
        at: how many records of the same fetch came before it.
    """

    error: KafkaError
    offset: int
    at: int


class ColumnConsumer:
    """Reads one partition. One thread uses it, except for what it has read.

    Args:
        functions: librdkafka's functions.
        handle: the consumer of librdkafka.
        topic: the topic.
        partition: its partition.
    """

    def __init__(self, functions: RdKafka, handle: int, topic: str, partition: int) -> None:
        self._rdkafka = functions
        self._handle = handle
        self._topic = topic.encode()
        self._partition = partition
        functions.poll_set_consumer(handle)
        self._queue = functions.queue_get_consumer(handle)
        self._held: set[HeldMessages] = set()
        self._lock = threading.RLock()
        self._room = Room()
        self._arrived = (c_void_p * _AT_ONCE)()
        self._faulty = (c_void_p * _AT_ONCE)()
        self._places = (c_int64 * _AT_ONCE)()

    @classmethod
    def open(cls, topic: str, partition: int, config: Mapping[str, Any]) -> ColumnConsumer | None:
        """Open a consumer; return None if that is not possible with these settings, or on this machine.

        confluent-kafka's consumer then says what is wrong, if anything is. Only that one can call Python's functions,
        and renew tokens while nobody polls.
        """
        functions = rdkafka.LOADED
        given = {name: value for name, value in config.items() if name != _LOGGER}
        plain = all(isinstance(value, str | int | float) for value in given.values())
        if functions is None or not plain or any("OAUTH" in str(given.get(name, "")) for name in _MECHANISMS):
            return None
        handle = _new(functions, given)
        return None if handle is None else cls(functions, handle, topic, partition)

    def assign(self, offset: int) -> None:
        """Read from an offset on.

        Raises:
            KafkaException: librdkafka refuses.
        """
        some = self._rdkafka.topic_partition_list_new(1)
        try:
            self._rdkafka.topic_partition_list_add(some, self._topic, self._partition)
            self._rdkafka.topic_partition_list_set_offset(some, self._topic, self._partition, offset)
            _check(self._rdkafka.assign(self._handle, some))
        finally:
            self._rdkafka.topic_partition_list_destroy(some)

    def end(self, timeout_s: float) -> int:
        """Return where the partition ends.

        Raises:
            KafkaException: no answer in time, or a refusal.
        """
        first, end = c_int64(), c_int64()
        place = self._handle, self._topic, self._partition
        _check(self._rdkafka.query_watermark_offsets(*place, byref(first), byref(end), int(timeout_s * 1_000)))
        return end.value

    def fetch(self, wait_s: float) -> tuple[RecordColumns | None, list[Fault]]:
        """Return the records that have arrived, and errors; wait for the first one."""
        count = self._consume(0, 0, _AT_ONCE)
        if not count:
            count = self._consume(0, int(wait_s * 1_000), 1)
            if not count:
                return None, []
            count += self._consume(1, 0, _AT_ONCE - 1)
        size = c_int64()
        sound = self._rdkafka.sound(self._arrived, count, self._faulty, self._places, byref(size))
        faults = [self._fault(at) for at in range(count - sound)]
        if not sound:
            return None, faults
        messages = (c_void_p * sound)()
        ctypes.memmove(messages, self._arrived, ctypes.sizeof(messages))
        held = HeldMessages(self._rdkafka, messages, sound, self._held, self._lock)
        return RecordColumns(self._rdkafka, held, messages, sound, size.value, self._room), faults

    def close(self) -> None:
        """Close it. What it has read stays readable."""
        with self._lock:
            for held in list(self._held):
                held.keep_headers()
        self._rdkafka.consumer_close(self._handle)
        self._rdkafka.queue_destroy(self._queue)
        self._rdkafka.destroy(self._handle)

    def _consume(self, at: int, wait_ms: int, most: int) -> int:
        first = ctypes.addressof(self._arrived) + at * ctypes.sizeof(c_void_p)
        return max(0, int(self._rdkafka.consume_batch_queue(self._queue, wait_ms, first, most)))

    def _fault(self, at: int) -> Fault:
        address = self._faulty[at] or 0
        found = Message.from_address(address)
        text = (self._rdkafka.message_errstr(address) or b"").decode(errors="replace")
        fault = Fault(KafkaError(found.error, text), found.offset, self._places[at])
        self._rdkafka.free((c_void_p * 1)(address), 1, self._rdkafka.destroy_at)
        return fault


def _new(functions: RdKafka, given: Mapping[str, Any]) -> int | None:
    """Return a new consumer of librdkafka; None if it refuses the settings."""
    config, text = functions.conf_new(), ctypes.create_string_buffer(_TEXT_BYTES)
    for name, value in {**given, "log.queue": True}.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        if functions.conf_set(config, name.encode(), written.encode(), text, _TEXT_BYTES):
            functions.conf_destroy(config)
            return None
    functions.conf_set_log_cb(config, rdkafka.note_line)
    handle: int | None = functions.new(rdkafka.CONSUMER, config, text, _TEXT_BYTES)
    if handle is None:
        functions.conf_destroy(config)
        return None
    functions.set_log_queue(handle, None)
    return handle


def _check(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))
