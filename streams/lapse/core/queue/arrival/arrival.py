"""Arrival: from the records of an underlying topic to messages with deadlines (L1 to L12, C6, C29, Q17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from lapse.core import letter, lifetime, transfer_counts
from lapse.core.lifetime import EXPIRES_AT_MS, NEVER, NO_TIMESTAMP, TTL_MS, Expiration, ExpirationModel, InvalidLifetime
from lapse.core.queue.arrival.trait import Traits
from lapse.core.record import Record
from lapse.core.repeats import MESSAGE_ID, id_of
from lapse.core.retry_delay import RETRY_DELAY_MS, UNSTATED, stated_ms
from lapse.core.rows import INVOLVED, SILENT, Rows
from lapse.core.transfer_counts import Counts
from lapse.protocol.header import REDRIVE_QUEUE, TRANSFER

_TELLING: Final = lifetime.NAMES | {REDRIVE_QUEUE, MESSAGE_ID, TRANSFER, RETRY_DELAY_MS} | letter.MARKERS
TELLING: Final = (TTL_MS, *sorted(_TELLING - {TTL_MS}))
"""The headers that decide a record's outcome. The first is the lifetime that `Rows` holds as a number."""

_SILENT: Final = ("", 0)
_UNCLEAR: Final = ("?", 0)
_INVOLVED: Final = -2
_SAFE_DIGITS: Final = 18
"""A number of at most this many digits always fits into 64 bits."""

_FEW_OF: Final = 8
"""If more than one in this number of records needs a check, checking all of them is cheaper."""

_MANY: Final = 16
"""The least number of records for which a first check whether they are alike pays off."""


class ScheduledArrival(NamedTuple):
    """A message that is not visible yet.

    Attributes:
        offset: its offset.
        at_ms: the instant at which it becomes visible, ms since the epoch; 0 = as soon as its transfer is confirmed.
        deadline_ms: its deadline, ms since the epoch.
        transfer: id of the transfer that has put it there; empty = none.
        counts: its deliveries and cancels at the queue that it comes from (C73).
    """

    offset: int
    at_ms: int
    deadline_ms: int
    transfer: str = ""
    counts: Counts = transfer_counts.NONE


@dataclass(slots=True, init=False)
class Arrivals:
    """The records of a batch of one source, sorted by their outcome.

    Attributes:
        offsets: messages that entered, ascending.
        deadlines_ms: deadline of each, ms since the epoch.
        scheduled: messages that are not visible yet.
        invalid: (offset, fault) of messages whose lifetime cannot be read.
        expired: (offset, deadline) of messages that were past their deadline on arrival.
        unconfirmed: offsets of those among `invalid` and `expired` that a transfer has put there.
        identified: (offset, message id, timestamp) of all messages with an id (X6).
        retries: by offset, the delay that a message states for its retries, ms (Q24).
    """

    offsets: list[int] = field(default_factory=list)
    deadlines_ms: list[int] = field(default_factory=list)
    scheduled: list[ScheduledArrival] = field(default_factory=list)
    invalid: list[tuple[int, str]] = field(default_factory=list)
    expired: list[tuple[int, int]] = field(default_factory=list)
    unconfirmed: set[int] = field(default_factory=set)
    identified: list[tuple[int, bytes, int]] = field(default_factory=list)
    retries: dict[int, int] = field(default_factory=dict)

    def __init__(
        self,
        offsets: list[int] | None = None,
        deadlines_ms: list[int] | None = None,
        scheduled: list[ScheduledArrival] | None = None,
        invalid: list[tuple[int, str]] | None = None,
        expired: list[tuple[int, int]] | None = None,
        unconfirmed: set[int] | None = None,
        identified: list[tuple[int, bytes, int]] | None = None,
        retries: dict[int, int] | None = None,
    ) -> None:
        """Begin with what is given. The constructor that a dataclass would get takes twice as long."""
        self.offsets = [] if offsets is None else offsets
        self.deadlines_ms = [] if deadlines_ms is None else deadlines_ms
        self.scheduled = [] if scheduled is None else scheduled
        self.invalid = [] if invalid is None else invalid
        self.expired = [] if expired is None else expired
        self.unconfirmed = set() if unconfirmed is None else unconfirmed
        self.identified = [] if identified is None else identified
        self.retries = {} if retries is None else retries

    def with_retry_delays(self, traits: Traits, offsets: Sequence[int]) -> Traits:
        """Return traits completed by the retry delays of messages, if any of them states one."""
        if not self.retries or self.retries.keys().isdisjoint(offsets):
            return traits
        retries = np.array([self.retries.get(offset, UNSTATED) for offset in offsets], np.int64)
        return replace(traits, retries=retries)

    def runs(self) -> list[tuple[int, int]]:
        """Return the slices (first, stop) of `offsets` that hold consecutive offsets."""
        count = len(self.offsets)
        if count < 2 or self.offsets[-1] - self.offsets[0] == count - 1:
            return [(0, count)] if count else []
        breaks = (np.flatnonzero(np.diff(np.array(self.offsets, np.int64)) != 1) + 1).tolist()
        edges = [0, *breaks, len(self.offsets)]
        return list(pairwise(edges))


def classify_records(records: Sequence[Record], queue: str, expiration: Expiration, clock_ms: int = NEVER) -> Arrivals:
    """Read each record's lifetime and decide what it becomes.

    Args:
        records: records of one source, by ascending offset.
        queue: name of this queue; a record that was redriven for another one is skipped (C29).
        expiration: the rule for lifetimes on the records' topic.
        clock_ms: the broker's clock, ms since the epoch. An instant after it has not passed, even if the record's
            timestamp is later still (L5, L10). `NEVER` = no timestamp is later.
    """
    default_ms = NEVER if expiration.default_ms is None else expiration.default_ms
    ceiling_ms = default_ms if expiration.model is ExpirationModel.CEILING else NEVER
    found = None
    if not isinstance(records, list) and isinstance(records, Rows):
        found = _classify_rows(records, queue, expiration, default_ms, ceiling_ms, clock_ms)
        if found is None:
            records = list(records)
    if found is None and len(records) >= _MANY:
        found = _classify_uniform(records, default_ms, ceiling_ms)
    if found is not None:
        return found
    arrivals = Arrivals()
    add_offset, add_deadline = arrivals.offsets.append, arrivals.deadlines_ms.append
    stamp_ms, headers, deadline_ms = NO_TIMESTAMP - 1, None, _INVOLVED
    for record in records:
        if record.timestamp != stamp_ms or record.headers != headers:
            # Timestamp and headers decide the deadline, and neighbouring records often have the same.
            stamp_ms, headers = record.timestamp, record.headers
            deadline_ms = _deadline_ms(headers, stamp_ms, default_ms, ceiling_ms)
        if deadline_ms == _INVOLVED:
            _classify_record(record, queue, expiration, arrivals, clock_ms)
            continue
        add_deadline(deadline_ms)
        add_offset(record.offset)
    return arrivals


def _classify_uniform(records: Sequence[Record], default_ms: int, ceiling_ms: int) -> Arrivals | None:
    """Sort out records that all have the same headers. Of these, lapse may read only a plain lifetime.

    Most batches are like that, and one computation for all records is fast. The result is None for other batches.
    """
    headers = records[0].headers
    if records[-1].headers != headers or [record.headers for record in records].count(headers) < len(records):
        return None
    name, stated_ms = _parse_plain_lifetime(headers) if headers else _SILENT
    offsets = [record.offset for record in records]
    if not name and default_ms == NEVER:
        return Arrivals(offsets, [NEVER] * len(records))
    stamps = [record.timestamp for record in records]
    oldest_ms, newest_ms = min(stamps), max(stamps)
    deadline_ms = _deadline_ms(headers, newest_ms, default_ms, ceiling_ms)
    if deadline_ms == _INVOLVED or oldest_ms == NO_TIMESTAMP:
        return None
    if oldest_ms == newest_ms or deadline_ms == NEVER or (name == EXPIRES_AT_MS and ceiling_ms == NEVER):
        return Arrivals(offsets, [deadline_ms] * len(records))
    if name == EXPIRES_AT_MS:
        return Arrivals(offsets, [min(stated_ms, stamp_ms + ceiling_ms) for stamp_ms in stamps])
    relative_ms = deadline_ms - newest_ms
    return Arrivals(offsets, [stamp_ms + relative_ms for stamp_ms in stamps])


def _classify_rows(
    rows: Rows, queue: str, expiration: Expiration, default_ms: int, ceiling_ms: int, clock_ms: int
) -> Arrivals | None:
    """Sort out records in columns. Only records that need it are checked; None = too many of them do."""
    stated_ms, stamps = rows.stated_ms, rows.timestamps_ms
    own_ms = np.where((stated_ms == 0) | (stated_ms > ceiling_ms), ceiling_ms, stated_ms)
    relative_ms = np.where(stated_ms == SILENT, default_ms, own_ms)
    limited = relative_ms != NEVER
    # Compared by subtraction, because a sum beyond 64 bits would become negative.
    plain = (relative_ms > 0) & (stamps > NO_TIMESTAMP) & (relative_ms < NEVER - np.maximum(stamps, 0))
    involved = (stated_ms == INVOLVED) | (limited & ~plain)
    deadlines_ms = np.where(limited, stamps + np.where(limited & plain, relative_ms, 0), NEVER)
    offsets = rows.offsets
    if not involved.any():
        return Arrivals(offsets.tolist(), deadlines_ms.tolist())
    looked_at = np.flatnonzero(involved)
    if len(looked_at) * _FEW_OF > len(rows):
        return None
    arrivals, done = Arrivals(), 0
    for at in looked_at.tolist():
        arrivals.offsets += offsets[done:at].tolist()
        arrivals.deadlines_ms += deadlines_ms[done:at].tolist()
        _classify_record(rows[at], queue, expiration, arrivals, clock_ms)
        done = at + 1
    arrivals.offsets += offsets[done:].tolist()
    arrivals.deadlines_ms += deadlines_ms[done:].tolist()
    return arrivals


def _deadline_ms(headers: lifetime.Headers, stamp_ms: int, default_ms: int, ceiling_ms: int) -> int:
    """Return a record's deadline if timestamp and at most one plain lifetime header decide it; else `_INVOLVED`."""
    name, stated_ms = _parse_plain_lifetime(headers) if headers else _SILENT
    deadline_ms, relative_ms = NEVER, default_ms
    if name == TTL_MS:
        relative_ms = ceiling_ms if stated_ms == 0 or stated_ms > ceiling_ms else stated_ms
    elif name == EXPIRES_AT_MS:
        deadline_ms, relative_ms = stated_ms, ceiling_ms
    elif name:
        return _INVOLVED
    if relative_ms != NEVER:
        if relative_ms <= 0 or stamp_ms == NO_TIMESTAMP:
            return _INVOLVED
        ends_ms = stamp_ms + relative_ms
        if ends_ms >= NEVER:
            return _INVOLVED
        if ends_ms < deadline_ms:
            return ends_ms
    return deadline_ms if deadline_ms > stamp_ms else _INVOLVED


def _parse_plain_lifetime(headers: lifetime.Headers) -> tuple[str, int]:
    """Return name and number of a plain lifetime header.

    The result is `_SILENT` if lapse reads none of the headers, and `_UNCLEAR` if one needs `lifetime.read`. Most
    records do not need that function, which is several times slower.
    """
    stated = _SILENT
    for name, value in headers:
        if name in _TELLING:
            if (name != TTL_MS and name != EXPIRES_AT_MS) or stated is not _SILENT or value is None:
                return _UNCLEAR
            if len(value) > _SAFE_DIGITS or not value.isdigit():
                return _UNCLEAR
            stated = name, int(value)
    return stated


def _classify_record(record: Record, queue: str, expiration: Expiration, arrivals: Arrivals, clock_ms: int) -> None:
    transfer = transfer_of(record.headers, queue)
    if transfer is None:
        return
    message_id = id_of(record.headers)
    # A transfer that starts again puts its messages again under the same ids, and confirms one of the copies (Q17).
    if message_id is not None and not transfer:
        arrivals.identified.append((record.offset, message_id, record.timestamp))
    try:
        stated = lifetime.read(record.headers, record.timestamp)
        deadline_ms = lifetime.deadline_ms(stated, record.timestamp, expiration)
    except InvalidLifetime as fault:
        arrivals.invalid.append((record.offset, str(fault)))
        if transfer:
            arrivals.unconfirmed.add(record.offset)
        return
    if (retry_ms := stated_ms(record.headers)) != UNSTATED:
        arrivals.retries[record.offset] = retry_ms
    arrived_ms = min(record.timestamp, clock_ms)
    if expiration.enabled and deadline_ms <= arrived_ms:
        arrivals.expired.append((record.offset, deadline_ms))
        if transfer:
            arrivals.unconfirmed.add(record.offset)
    elif transfer:
        counts = transfer_counts.counts_in(record.headers)
        arrivals.scheduled.append(
            ScheduledArrival(record.offset, stated.enqueue_at_ms or 0, deadline_ms, transfer, counts)
        )
    elif stated.enqueue_at_ms is not None and stated.enqueue_at_ms > arrived_ms:
        arrivals.scheduled.append(ScheduledArrival(record.offset, stated.enqueue_at_ms, deadline_ms))
    else:
        arrivals.offsets.append(record.offset)
        arrivals.deadlines_ms.append(deadline_ms)


def transfer_of(headers: lifetime.Headers, queue: str) -> str | None:
    """Return the id of the transfer that has put a record there for a queue; empty = none has.

    The result is None if the record is for another queue (C29, Q17). On a letter that another program wrote these
    headers are history, too (C54).
    """
    transfer = _transfer_in(headers, queue)
    return transfer if transfer == "" or not letter.is_letter(headers) else ""


def transfers_of(records: Sequence[Record], queue: str) -> list[str]:
    """Return, for each record that a transfer has put there for a queue, the id of the transfer."""
    if isinstance(records, Rows):
        records = [records[at] for at in np.flatnonzero(records.stated_ms == INVOLVED).tolist()]
    found = (transfer_of(record.headers, queue) for record in records)
    return [transfer for transfer in found if transfer]


def _transfer_in(headers: lifetime.Headers, queue: str) -> str | None:
    transfer = ""
    for name, value in headers:
        if name == REDRIVE_QUEUE and value != queue.encode():
            return None
        if name == TRANSFER and (found := parse_transfer_header(value)):
            if found[0] != queue:
                return None
            transfer = found[1]
    return transfer


def parse_transfer_header(value: bytes | None) -> tuple[str, str] | None:
    """Return queue and transfer id of a `lapse-transfer` header; None if it does not name both."""
    queue, _, name = (value or b"").decode("utf-8", "replace").partition("/")
    return (queue, name) if queue and name else None
