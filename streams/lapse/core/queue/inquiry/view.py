"""Record view: a record as expressions see it, whose payload is parsed on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import orjson

from lapse.core.generation import offset_of
from lapse.core.record import Record
from lapse.core.rows import Rows, Texts

_UNREAD = object()

Parse = Callable[[bytes], object]
"""Parses a payload; raises ValueError if it cannot."""


class RecordView:
    """A message for `lapse.core.expression`. A payload that cannot be parsed is null."""

    __slots__ = ("_parse", "_payload", "_record", "partition", "topic")

    def __init__(self, topic: str, partition: int, record: Record, parse: Parse, payload: object = _UNREAD) -> None:
        self.topic = topic
        self.partition = partition
        self._record = record
        self._parse = parse
        self._payload = payload

    @property
    def payload(self) -> object:
        """The parsed payload; None if there is none, or it cannot be parsed."""
        if self._payload is _UNREAD:
            self._payload = _parsed(self._record.value, self._parse)
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
        """The record's offset in its log, also if a rewind brought the message back."""
        return offset_of(self._record.offset)

    @property
    def position(self) -> int:
        """The message's position: the record's offset, and the message's generation (C61)."""
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, ms since the epoch."""
        return self._record.timestamp


class RowViews(Sequence[RecordView]):
    """Messages of one source whose records are in columns. An object for one is made only if it is accessed.

    Args:
        topic: their topic.
        partition: its partition.
        rows: their records.
        parse: parses a payload.
        payloads: the parsed payloads, if they are known.
    """

    def __init__(
        self, topic: str, partition: int, rows: Rows, parse: Parse, payloads: list[object] | None = None
    ) -> None:
        self._source = topic, partition
        self._rows = rows
        self._parse = parse
        self._payloads = payloads

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> RecordView: ...

    @overload
    def __getitem__(self, at: slice) -> RowViews: ...

    def __getitem__(self, at: int | slice) -> RecordView | RowViews:
        known = self._payloads
        if isinstance(at, slice):
            return RowViews(*self._source, self._rows[at], self._parse, None if known is None else known[at])
        return RecordView(*self._source, self._rows[at], self._parse, _UNREAD if known is None else known[at])

    def __iter__(self) -> Iterator[RecordView]:
        return (self[at] for at in range(len(self)))

    def payloads(self) -> list[object]:
        """Return the parsed payloads, as `RecordView.payload` returns each."""
        if self._payloads is None:
            rows, parse = self._rows, self._parse
            if len(rows) and int(rows.sizes()[1].min()) < 0:  # one has no value
                self._payloads = [message.payload for message in self]
            else:
                self._payloads = _all_parsed(rows.values(), parse)
        return self._payloads

    def texts(self, member: str) -> Texts | None:
        """See `Rows.texts`; None also if the payloads are parsed already, or are not JSON."""
        if self._payloads is not None or self._parse is not orjson.loads:
            return None
        return self._rows.texts(member)


def parse_payloads(messages: Sequence[RecordView | None]) -> None:
    """Parse the payloads of messages now, once for all expressions that look at them."""
    if isinstance(messages, RowViews):
        messages.payloads()
        return
    for message in messages:
        if message is not None:
            message.payload  # noqa: B018  # is kept


def _parsed(value: bytes | None, parse: Parse) -> object:
    """Return a parsed payload; None if there is none, or it cannot be parsed."""
    try:
        return None if value is None else parse(value)
    except ValueError:
        return None


def _all_parsed(values: Sequence[bytes], parse: Parse) -> list[object]:
    """Return parsed payloads; None for one that cannot be parsed."""
    payloads: list[object] = []
    add = payloads.append
    for value in values:
        try:
            add(parse(value))
        except ValueError:  # calling a function for each would take longer
            add(None)
    return payloads
