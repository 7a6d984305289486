"""Arrival: reads key, effect and lifetime of an arriving record (S1 to S3, L2 to L5, C29)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.core import lifetime
from lapse.core.letter import is_letter
from lapse.core.reason import Reason
from lapse.core.record import Record
from lapse.core.sow.arrival import origin
from lapse.core.sow.arrival.origin import Origin
from lapse.core.sow.keys import key
from lapse.core.sow.records.record import OWN_KEY, PUBLISHED_MS, Headers, pack_headers
from lapse.core.sow.settings import SowSettings
from lapse.protocol.header import COMMAND, ORIGIN_NAMES, ORIGIN_TARGET, REDRIVE_QUEUE, TRANSFER

_AS_STATED: Final = lifetime.Expiration()
"""The rule for replicated records, which keep the deadline that they state, without default and ceiling (S10)."""

MEANT: Final = lifetime.NAMES | {COMMAND, REDRIVE_QUEUE, TRANSFER}
"""Headers that change the effect of a record. Without them it is a plain publish or delete."""

_NOT_STORED: Final = frozenset({ORIGIN_TARGET, PUBLISHED_MS, OWN_KEY})
"""Headers that say nothing of the record itself."""

_OF_AN_UPDATE: Final = ORIGIN_NAMES | {COMMAND}
"""Headers that say how an update is merged or ordered. On a dead letter they are history (C54)."""

_MOST_CHARACTERS: Final = 2_000
"""The greatest length of a fault's text, which may quote a long value and is kept with pending letters."""


class Refused(Exception):
    """A record is refused, and becomes a dead letter.

    Attributes:
        reason: the reason of L14.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail[:_MOST_CHARACTERS])
        self.reason = reason


class Update(NamedTuple):
    """An update of one key.

    Attributes:
        key: the record's key.
        at_ms: the instant at which it counts as arrived, ms since the epoch.
        timestamp_ms: the timestamp that orders updates of its key at this deployment, ms since the epoch.
        enqueue_at_ms: the instant at which it takes effect, ms since the epoch; None = at once.
        deadline_ms: its deadline, ms since the epoch.
        offset: its offset in the source.
        source: number of the underlying partition.
        delta: whether it is merged into the stored record.
        headers: its packed headers.
        payload: its payload; None = a delete.
        origin: the deployments from which it was replicated; None = it was published here (S10).
        raised_ms: the timestamp that orders it among the updates of all deployments, ms since the epoch; None = that of
            this deployment.
    """

    key: bytes
    at_ms: int
    timestamp_ms: int
    enqueue_at_ms: int | None
    deadline_ms: int
    offset: int
    source: int
    delta: bool
    headers: bytes
    payload: bytes | None
    origin: Origin | None = None
    raised_ms: int | None = None

    @property
    def stamp_ms(self) -> int:
        """The timestamp that orders it among the updates of all deployments, ms since the epoch."""
        return self.timestamp_ms if self.raised_ms is None else self.raised_ms


def is_redriven_elsewhere(record: Record, entity: str) -> bool:
    """Return whether this entity skips a record, which was redriven to another one or handed to a queue (C29, Q17).

    On a letter that another program wrote these headers are history (C54).
    """
    return any(
        name == TRANSFER or (name == REDRIVE_QUEUE and value != entity.encode()) for name, value in record.headers
    ) and not is_letter(record.headers)


def check_size(record: Record, most_bytes: int) -> None:
    """Check that a record fits into the journal and into the subscribers' topic.

    A producer's compression may have let a larger one into the underlying topic.

    Raises:
        Refused: the record is larger than `most_bytes`.
    """
    size = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    if size > most_bytes:
        raise Refused(Reason.UNDECODABLE, f"the record has {size:,} bytes; this SOW topic keeps {most_bytes:,} at most")


def parse_update(record: Record, source: int, at_ms: int, settings: SowSettings) -> Update:
    """Read a record as an update.

    Args:
        record: the record.
        source: number of its underlying partition.
        at_ms: the instant at which it counts as arrived, ms since the epoch: its timestamp, if it has one, but not
            later than the broker's clock.
        settings: the entity's settings.

    Raises:
        Refused: its key, command, lifetime, schedule or origin is invalid.
    """
    timestamp_ms = record.timestamp
    history = _has_history(record.headers)
    try:
        source_of = origin.parse_origin(record.headers) if record.headers and not history else None
    except ValueError as error:
        raise Refused(Reason.UNDECODABLE, str(error)) from error
    expiration = settings.expiration if source_of is None else _AS_STATED
    try:
        stated = lifetime.read(record.headers, timestamp_ms)
        # A delete has no lifetime, but its headers are read, so that a fault in them is reported.
        deadline_ms = lifetime.NEVER if record.value is None else lifetime.deadline_ms(stated, timestamp_ms, expiration)
    except lifetime.InvalidLifetime as error:
        raise Refused(Reason.INVALID_LIFETIME, str(error)) from error
    delta = _is_delta(record.headers, history)
    enqueue_at_ms = stated.enqueue_at_ms
    return Update(
        key_of(record, settings, delta),
        at_ms,
        timestamp_ms if source_of is None else source_of.timestamp_ms,
        enqueue_at_ms if enqueue_at_ms is not None and enqueue_at_ms > at_ms else None,
        deadline_ms,
        record.offset,
        source,
        delta and record.value is not None and not history,
        _stored_headers(record.headers, history, record.key if settings.key else None),
        record.value,
        source_of,
    )


def _has_history(headers: Headers) -> bool:
    """Return whether a command or an origin in a record's headers is that of a message that died (C54)."""
    return any(name in _OF_AN_UPDATE for name, _ in headers) and is_letter(headers)


def _stored_headers(headers: Headers, history: bool, own_key: bytes | None) -> bytes:
    """Return packed headers without those that are not stored as they came, nor the origin if that is history.

    If the key is in the payload, a note of the Kafka record's own key is added.
    """
    left_out = _NOT_STORED | ORIGIN_NAMES if history else _NOT_STORED
    if any(name in left_out for name, _ in headers):
        headers = [header for header in headers if header[0] not in left_out]
    if own_key is not None:
        headers = [*headers, (OWN_KEY, own_key)]
    return pack_headers(headers) if headers else b""


def describe_payload_fault(error: Exception) -> str:
    """Return a text for the sender that says what is wrong with a payload."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def key_of(record: Record, settings: SowSettings, delta: bool = False) -> bytes:
    """Return a record's key: fields of its payload if so configured, else the Kafka record key (S1).

    A delete has no payload, so it always names its key by the Kafka record key.

    Raises:
        Refused: the record has no key, or an invalid one.
    """
    if settings.key and record.value is not None:
        return key_in(record.value, settings, delta)
    if record.key is None:
        what = "a null value deletes by its record key, and" if record.value is None else "the record has no key:"
        raise Refused(Reason.UNDECODABLE, f"{what} its record key is null")
    if settings.key:
        try:
            return key.canonical_key(record.key, settings.key)
        except key.NoKey as error:
            raise Refused(Reason.UNDECODABLE, f"a null value deletes by its record key, and {error}") from error
    return record.key


def _is_delta(headers: Sequence[tuple[str, bytes | None]], history: bool) -> bool:
    """Return whether headers say that an update is merged (S2).

    Args:
        headers: the record's headers.
        history: whether they describe a dead letter's message, so that nothing is refused (C54).

    Raises:
        Refused: a command is unknown, or contradicts another one.
    """
    commands = [value for name, value in headers if name == COMMAND]
    if history:
        return b"delta" in commands
    for value in commands:
        if value not in (b"delta", b"publish"):
            given = (value or b"").decode("utf-8", "replace")
            raise Refused(Reason.UNDECODABLE, f"{COMMAND} = {given!r}: expected publish or delta")
    if len(set(commands)) > 1:
        raise Refused(Reason.UNDECODABLE, f"{COMMAND} is there as publish and as delta; send one of them")
    return b"delta" in commands


def key_of_refused(
    value: bytes | None, headers: Sequence[tuple[str, bytes | None]], settings: SowSettings
) -> bytes | None:
    """Return the key in a refused record's payload; None if it has none, or keys are Kafka record keys."""
    if not settings.key or value is None:
        return None
    try:
        return key_in(value, settings, any(name == COMMAND and content == b"delta" for name, content in headers))
    except Refused:
        return None


def key_in(value: bytes, settings: SowSettings, delta: bool = False) -> bytes:
    """Return the key in the fields of a payload (S1).

    Raises:
        Refused: the payload cannot be read, or a field is missing or has an unsuitable value.
    """
    try:
        payload = settings.parse_delta(value) if delta else settings.parse(value)
    except (ValueError, RecursionError) as error:
        raise Refused(
            Reason.UNDECODABLE, f"its key is in its payload, which cannot be read: {describe_payload_fault(error)}"
        ) from error
    try:
        try:
            return key.key_from_payload(payload, settings.key, delta)
        except key.InexactKey:
            return key.key_from_payload(settings.parse_exactly(value), settings.key, exact=True)
    except key.NoKey as error:
        raise Refused(Reason.UNDECODABLE, str(error)) from error
