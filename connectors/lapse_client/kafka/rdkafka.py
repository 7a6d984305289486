"""librdkafka's own C functions, for what confluent-kafka has no way to do: records without an object for each.

confluent-kafka has the library with it. Only functions and types of its public interface (rdkafka.h) are used, and
`record_columns.c`, which is built with the package if there is a C compiler. If one of them is missing, `LOADED` is
None, and each record is an object of confluent-kafka. The results are the same, for more CPU.
"""

from __future__ import annotations

import ctypes
import logging
import zlib
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any, Final

from confluent_kafka import cimpl  # noqa: TID251 - the path of the library that it has loaded

from lapse_client.kafka.log import log

NAME: Final = "librecord_columns.so"
SOURCE: Final = "record_columns.c"

CONSUMER: Final = 1
"""librdkafka's number for a consumer."""

_OLDEST: Final = 0x02000000
"""The oldest version of librdkafka that has all these functions."""

_LEVELS: Final = {3: logging.ERROR, 4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
"""Levels of syslog. Those below 3 are worse than errors."""


class Message(ctypes.Structure):
    """The beginning of `rd_kafka_message_t`, up to the offset."""

    _fields_ = (
        ("error", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("value", c_void_p),
        ("value_size", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("offset", c_int64),
    )


_LOGGER: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


def _note_line(_: int | None, level: int, facility: bytes, text: bytes) -> None:
    """Log a line of librdkafka. It calls this in the thread that asks for records."""
    log.log(
        _LEVELS.get(level, logging.CRITICAL), "%s %s", facility.decode(errors="replace"), text.decode(errors="replace")
    )


note_line: Final = _LOGGER(_note_line)
"""`_note_line` as librdkafka calls it."""

_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "conf_new": (c_void_p, []),
    "conf_destroy": (None, [c_void_p]),
    "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "conf_set_log_cb": (None, [c_void_p, _LOGGER]),
    "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "set_log_queue": (c_int, [c_void_p, c_void_p]),
    "poll_set_consumer": (c_int, [c_void_p]),
    "queue_get_consumer": (c_void_p, [c_void_p]),
    "queue_destroy": (None, [c_void_p]),
    "topic_partition_list_new": (c_void_p, [c_int]),
    "topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "topic_partition_list_destroy": (None, [c_void_p]),
    "assign": (c_int, [c_void_p, c_void_p]),
    "consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "query_watermark_offsets": (
        c_int,
        [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int],
    ),
    "message_headers": (c_int, [c_void_p, POINTER(c_void_p)]),
    "header_get_all": (c_int, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)]),
    "message_errstr": (c_char_p, [c_void_p]),
    "consumer_close": (c_int, [c_void_p]),
    "destroy": (None, [c_void_p]),
}
"""The functions, without their prefix `rd_kafka_`: result and arguments."""


class RdKafka:
    """The functions of librdkafka and of `record_columns.c`.

    Args:
        library: librdkafka.
        columns: the library that is built from `record_columns.c`.

    Raises:
        AttributeError: a function is missing.
    """

    def __init__(self, library: Any, columns: Any) -> None:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.timestamp_at = ctypes.cast(library.rd_kafka_message_timestamp, c_void_p).value
        self.destroy_at = ctypes.cast(library.rd_kafka_message_destroy, c_void_p).value
        self.sound, self.columns, self.free = columns.lapse_sound, columns.lapse_columns, columns.lapse_free
        self.sound.restype = self.columns.restype = c_int64
        self.sound.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)]
        self.columns.argtypes = [c_void_p, c_int64, *[c_void_p] * 7]
        self.free.restype, self.free.argtypes = None, [c_void_p, c_int64, c_void_p]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def load(directory: Path) -> RdKafka | None:
    """Load both libraries; return None if one is missing, unusable, or not built from the source in the directory."""
    source = directory / SOURCE
    try:
        columns = ctypes.CDLL(str(directory / NAME))
        columns.lapse_source.restype = c_int64
        if source.exists() and columns.lapse_source() != zlib.crc32(source.read_bytes()):
            return None
        # A function is looked for in what this library needs, too: the librdkafka that confluent-kafka itself uses.
        library = ctypes.CDLL(cimpl.__file__)
        return RdKafka(library, columns) if library.rd_kafka_version() >= _OLDEST else None
    except (OSError, AttributeError, TypeError):
        return None


LOADED: RdKafka | None = load(Path(__file__).parent)
