"""The journal's record of a scheduled message: instants, traits, and what else holds it back."""

from __future__ import annotations

import struct
from typing import Final

from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.retry_delay import UNSTATED
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

_SCHEDULED: Final = struct.Struct("<qqQBq")
_TRANSFERRED: Final = struct.Struct("<qB")
"""Follows the plain part if the message is in a transfer or has further values. The transfer's id comes last."""
_IN_TRANSFER: Final = 1
_HELD: Final = 2
_RETRIES: Final = 4
"""Flag: the message's retry delay precedes the id."""

_COUNTED: Final = 8
"""Flag: the message's counts from another deployment precede the id, after the retry delay."""

_DELAY: Final = struct.Struct("<q")
_COUNTS: Final = struct.Struct("<II")


def pack(scheduled: Scheduled) -> bytes:
    """Return the bytes of a message that has no place yet."""
    plain = _SCHEDULED.pack(*scheduled[:5])
    retries = b"" if scheduled.retry_ms == UNSTATED else _DELAY.pack(scheduled.retry_ms)
    counts = b"" if scheduled.counts == NO_COUNTS else _COUNTS.pack(*scheduled.counts)
    if not scheduled.transfer and not scheduled.held and not retries and not counts:
        return plain
    marks = (_IN_TRANSFER if scheduled.in_transfer else 0) | (_HELD if scheduled.held else 0)
    marks |= (_RETRIES if retries else 0) | (_COUNTED if counts else 0)
    return plain + _TRANSFERRED.pack(scheduled.then_ms, marks) + retries + counts + scheduled.transfer.encode()


def is_plain(value: bytes) -> bool:
    """Return whether a packed message has only instants and traits."""
    return len(value) == _SCHEDULED.size


def unpack(value: bytes) -> Scheduled:
    """Read a message that `pack` wrote."""
    scheduled = Scheduled(*_SCHEDULED.unpack_from(value))
    if is_plain(value):
        return scheduled
    then_ms, marks = _TRANSFERRED.unpack_from(value, _SCHEDULED.size)
    at, retry_ms = _SCHEDULED.size + _TRANSFERRED.size, UNSTATED
    if marks & _RETRIES:
        (retry_ms,) = _DELAY.unpack_from(value, at)
        at += _DELAY.size
    counts = NO_COUNTS
    if marks & _COUNTED:
        counts = Counts(*_COUNTS.unpack_from(value, at))
        at += _COUNTS.size
    in_transfer, held = bool(marks & _IN_TRANSFER), bool(marks & _HELD)
    return scheduled._replace(
        transfer=value[at:].decode(),
        then_ms=then_ms,
        in_transfer=in_transfer,
        held=held,
        retry_ms=retry_ms,
        counts=counts,
    )
