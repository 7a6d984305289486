"""View: a stored record as filters and subscribers see it, whose payload is parsed on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core.sow.query.select import Select
from lapse.core.sow.records.record import facts_of, headers_of, payload_of, publishers_headers
from lapse.core.sow.settings import Parse, SowSettings
from lapse.core.sow.step import Kind, Message, OutOfFocus
from lapse.protocol.bookmark import Bookmark

UNREADABLE: Final = None
"""The payload of a record that cannot be parsed, for filters: NULL, like a missing one."""

_UNPARSED: Final = object()


class View:
    """One state of a record.

    Args:
        journal_key: the record's journal key, which is `r` and its key.
        entry: the packed record.
        sources: topic and partition by number of the source.
        parse: parses a payload.
    """

    __slots__ = ("_parse", "_payload", "_sources", "entry", "facts", "journal_key")

    def __init__(self, journal_key: bytes, entry: bytes, sources: Sequence[tuple[str, int]], parse: Parse) -> None:
        self.journal_key = journal_key
        self.entry = entry
        self.facts = facts_of(entry)
        self._sources = sources
        self._parse = parse
        self._payload: object = _UNPARSED

    @property
    def payload(self) -> object:
        """The parsed payload; None if it cannot be parsed."""
        if self._payload is _UNPARSED:
            try:
                self._payload = self._parse(self.raw)
            except (ValueError, RecursionError):
                self._payload = UNREADABLE
        return self._payload

    @property
    def raw(self) -> bytes:
        """The payload's bytes."""
        return payload_of(self.entry)

    @property
    def headers(self) -> dict[str, bytes | None]:
        """The publisher's headers by name. The last one counts if a name is repeated."""
        if not self.facts.headers_bytes:
            return {}
        return dict(publishers_headers(headers_of(self.entry)))

    @property
    def key(self) -> bytes:
        """The record's key."""
        return self.journal_key[1:]

    @property
    def topic(self) -> str:
        """The underlying topic of its last update."""
        return self._sources[self.facts.source][0]

    @property
    def partition(self) -> int:
        """The partition of its last update."""
        return self._sources[self.facts.source][1]

    @property
    def offset(self) -> int:
        """The offset of its last update."""
        return self.facts.offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, ms since the epoch."""
        return self.facts.timestamp_ms

    @property
    def bookmark(self) -> Bookmark:
        """The bookmark of its last update."""
        return Bookmark(*self._sources[self.facts.source], self.facts.offset)

    def selected(self, select: Select | None, settings: SowSettings) -> bytes | None:
        """Return the payload with only the selected fields; None to send it whole, also if it is unreadable."""
        if select is None:
            return None
        try:
            return settings.serialize_selected(select.select_from(settings.parse_exactly(self.raw)))
        except (ValueError, TypeError, RecursionError):
            return None

    def message(
        self,
        kind: Kind,
        subscription: str,
        *,
        command_id: str = "",
        payload: bytes | None = None,
        bookmark: Bookmark | None = None,
        reason: OutOfFocus | None = None,
    ) -> Message:
        """Return a message about this record, with its own payload and bookmark unless others are given."""
        return Message(
            kind,
            subscription,
            command_id,
            self.key,
            self.raw if payload is None else payload,
            tuple(headers_of(self.entry)) if self.facts.headers_bytes else (),
            self.bookmark if bookmark is None else bookmark,
            self.facts.timestamp_ms,
            self.facts.deadline_ms,
            reason,
        )
