"""Record view: a record as expressions see it, whose payload is parsed on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lapse.core.record import Record

_UNREAD = object()

Parse = Callable[[bytes], object]
"""Parses a payload; raises ValueError if it cannot."""


class RecordView:
    """A message for `lapse.core.expression`. A payload that cannot be parsed is null."""

    __slots__ = ("_parse", "_payload", "_record", "partition", "topic")

    def __init__(self, topic: str, partition: int, record: Record, parse: Parse) -> None:
        self.topic = topic
        self.partition = partition
        self._record = record
        self._parse = parse
        self._payload: object = _UNREAD

    @property
    def payload(self) -> object:
        """The parsed payload; None if there is none, or it cannot be parsed."""
        if self._payload is _UNREAD:
            value = self._record.value
            try:
                self._payload = None if value is None else self._parse(value)
            except ValueError:
                self._payload = None
        return self._payload

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers. The last one counts if a name is repeated."""
        return dict(self._record.headers)

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        return self._record.key

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, ms since the epoch."""
        return self._record.timestamp
