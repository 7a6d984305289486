"""Lifetimes: from a record's headers to its deadline (L1 to L10, C6 to C10).

The deadline is computed once, on arrival, from the record's own timestamp, and stored. So a replay computes the same
deadline, and a later change of the configuration does not change it (L9).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lapse.core.days import DAY_MS, days_since_1970, time_of_day_ms, utc_offset_ms
from lapse.core.letter import is_letter

NEVER: Final = (1 << 63) - 1
"""A deadline that no clock reaches: the message never expires."""

NO_TIMESTAMP: Final = -1

TTL_MS: Final = "lapse-ttl-ms"
EXPIRES_AT_MS: Final = "lapse-expires-at-ms"
EXPIRE_TIME: Final = "lapse-expire-time"
CE_EXPIRYTIME: Final = "ce_expirytime"
ENQUEUE_AT_MS: Final = "lapse-enqueue-at-ms"

NAMES: Final = frozenset({TTL_MS, EXPIRES_AT_MS, EXPIRE_TIME, CE_EXPIRYTIME, ENQUEUE_AT_MS})
"""Headers that concern a message's lifetime or its schedule."""

_DIGITS: Final = re.compile(rb"[0-9]{1,19}\Z")
_RFC3339: Final = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))\Z"
)


class InvalidLifetime(ValueError):
    """A header states an invalid lifetime or schedule. The text says which header and why (L12)."""


class ExpirationModel(StrEnum):
    """Whether the entity's default lifetime is only a default, or also the maximum (L7)."""

    OVERRIDE = "override"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Expiration:
    """An entity's rule for lifetimes (L6 to L8).

    Attributes:
        enabled: whether messages expire at their deadlines.
        default_ms: lifetime of a message that states none, ms; None = it never expires.
        model: whether a message's own lifetime overrides the default, or the default is also the maximum.
    """

    enabled: bool = False
    default_ms: int | None = None
    model: ExpirationModel = ExpirationModel.OVERRIDE

    def shortened_by(self, topic_default_ms: int | None) -> Expiration:
        """Return this rule with the default shortened to an underlying topic's own, if that is shorter (L8, C10)."""
        if topic_default_ms is None:
            return self
        own = topic_default_ms if self.default_ms is None else min(self.default_ms, topic_default_ms)
        return Expiration(self.enabled, own, self.model)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The lifetime and schedule that a record's headers state.

    Attributes:
        relative_ms: lifetime from arrival, or from the scheduled instant, ms; None = not stated in this form.
        absolute_ms: deadline, ms since the epoch; None = not stated in this form.
        enqueue_at_ms: instant before which the message is invisible, ms since the epoch; None = visible at once (L5).
    """

    relative_ms: int | None = None
    absolute_ms: int | None = None
    enqueue_at_ms: int | None = None

    @property
    def stated(self) -> bool:
        """Whether the message states a lifetime, which may be 0 (never expires)."""
        return self.relative_ms is not None or self.absolute_ms is not None


NO_LIFETIME: Final = Lifetime()

Headers = Sequence[tuple[str, bytes | None]]


def read(headers: Headers, timestamp_ms: int) -> Lifetime:
    """Read the lifetime and schedule that a record's headers state (L2 to L5, C7, C8).

    The headers of a dead letter do not count, since they describe the dead message (C54).

    Args:
        headers: the record's headers. Other names are ignored, and names may be repeated.
        timestamp_ms: the record's timestamp, ms since the epoch, by which two headers can be compared.

    Raises:
        InvalidLifetime: a value is invalid, or two values state different instants.
    """
    if is_letter(headers):
        return NO_LIFETIME
    stated: list[tuple[str, int | None, int | None]] = []
    schedules: list[int] = []
    for name, value in headers:
        if name == TTL_MS:
            stated.append((name, _decimal(name, value), None))
        elif name in (EXPIRES_AT_MS, CE_EXPIRYTIME):
            instant = _decimal(name, value) if name == EXPIRES_AT_MS else rfc3339_ms(value)
            stated.append((name, None, instant))
        elif name == EXPIRE_TIME:
            stated.append((name, *_typed(value)))
        elif name == ENQUEUE_AT_MS:
            schedules.append(_decimal(name, value))
    if not stated and not schedules:
        return NO_LIFETIME
    if any(at_ms != schedules[0] for at_ms in schedules):
        raise InvalidLifetime(f"{ENQUEUE_AT_MS} stands {len(schedules)} times with different instants")
    enqueue_at_ms = schedules[0] if schedules else None
    if not stated:
        return Lifetime(enqueue_at_ms=enqueue_at_ms)
    start_ms = _start(timestamp_ms, enqueue_at_ms)
    if timestamp_ms == NO_TIMESTAMP and enqueue_at_ms is None:
        for name, relative_ms, _ in stated:
            if relative_ms:
                raise InvalidLifetime(f"{name} counts from the record's timestamp, and the record has none (-1)")
    _, relative_ms, absolute_ms = stated[0]
    if len(stated) > 1:
        instants = {_instant(start_ms, relative, absolute) for _, relative, absolute in stated}
        if len(instants) > 1:
            names = " and ".join(name for name, _, _ in stated)
            raise InvalidLifetime(f"{names} state different lifetimes; send one of them")
    return Lifetime(relative_ms, absolute_ms, enqueue_at_ms)


def deadline_ms(lifetime: Lifetime, timestamp_ms: int, expiration: Expiration) -> int:
    """Return the instant at which a message expires, ms since the epoch; `NEVER` if it does not (L6 to L9).

    The deadline is also computed if expiration is disabled. It is then only stored (L6, L9).

    Args:
        lifetime: the lifetime that the message states.
        timestamp_ms: its arrival, the record's timestamp, ms since the epoch.
        expiration: the entity's rule, with the underlying topic's own lifetime included.

    Raises:
        InvalidLifetime: the deadline exceeds 64 bits, or depends on a timestamp that the record does not have.
    """
    start_ms = _start(timestamp_ms, lifetime.enqueue_at_ms)
    ceiling_ms = expiration.default_ms if expiration.model is ExpirationModel.CEILING else None
    if not lifetime.stated:
        relative_ms = expiration.default_ms
        if relative_ms is None:
            return NEVER
    elif lifetime.absolute_ms is not None:
        if ceiling_ms is None:
            return lifetime.absolute_ms
        return min(lifetime.absolute_ms, _sum(start_ms, ceiling_ms, "the entity's ceiling"))
    else:
        relative_ms = lifetime.relative_ms or None
        if ceiling_ms is not None:
            relative_ms = ceiling_ms if relative_ms is None else min(relative_ms, ceiling_ms)
        if relative_ms is None:
            return NEVER
    return _sum(start_ms, relative_ms, "its lifetime")


def rfc3339_ms(value: bytes | None) -> int:
    """Parse an RFC 3339 instant, truncated to the millisecond (L3, C7).

    An instant before 1970 is returned as 1970, which is past as well, so that no deadline is negative.

    Raises:
        InvalidLifetime: the text has another form, or the instant does not exist.
    """
    match = None if value is None else _RFC3339.match(value)
    if match is None:
        raise InvalidLifetime(
            f"{CE_EXPIRYTIME} = {_quote_value(value)}: expected an RFC 3339 instant like 2026-01-31T12:00:00Z"
        )
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    days = days_since_1970(year, month, day)
    if days is None:
        raise InvalidLifetime(f"{CE_EXPIRYTIME} = {_quote_value(value)}: there is no such day")
    of_day_ms = time_of_day_ms(hour, minute, second, (match[7] or b"").decode())
    if of_day_ms is None:
        raise InvalidLifetime(f"{CE_EXPIRYTIME} = {_quote_value(value)}: there is no such time of day")
    offset_ms = utc_offset_ms(match[8].decode(), int(match[9]), int(match[10])) if match[8] else 0
    if offset_ms is None:
        raise InvalidLifetime(f"{CE_EXPIRYTIME} = {_quote_value(value)}: there is no such UTC offset")
    return max(0, days * DAY_MS + of_day_ms - offset_ms)


def _start(timestamp_ms: int, enqueue_at_ms: int | None) -> int:
    """Return the start of a relative lifetime: arrival, or the scheduled instant if that is later (L5)."""
    return timestamp_ms if enqueue_at_ms is None else max(timestamp_ms, enqueue_at_ms)


def _sum(start_ms: int, relative_ms: int, what: str) -> int:
    if start_ms == NO_TIMESTAMP:
        raise InvalidLifetime(f"{what} counts from the record's timestamp, and the record has none (-1)")
    instant_ms = start_ms + relative_ms
    if instant_ms >= NEVER:
        raise InvalidLifetime(f"arrival {start_ms} ms plus {what} of {relative_ms} ms is beyond 64 bits")
    return instant_ms


def _instant(start_ms: int, relative_ms: int | None, absolute_ms: int | None) -> int | None:
    """Return the deadline that one header states; None = never."""
    if absolute_ms is not None:
        return absolute_ms
    return start_ms + relative_ms if relative_ms else None


def _decimal(name: str, value: bytes | None) -> int:
    if value is None or not _DIGITS.match(value):
        raise InvalidLifetime(
            f"{name} = {_quote_value(value)}: expected 1 to 19 ASCII digits, a number of milliseconds"
        )
    number = int(value)
    if number > NEVER:
        raise InvalidLifetime(f"{name} = {_quote_value(value)}: more than 64 bits")
    return number


def _typed(value: bytes | None) -> tuple[int | None, int | None]:
    """Read MQe's typed field, whose width says whether it is relative or absolute (L4, C7)."""
    width = 0 if value is None else len(value)
    if value is None or width not in (4, 8):
        raise InvalidLifetime(
            f"{EXPIRE_TIME} has {width} bytes: expected 4 (relative ms, int32) or 8 (absolute ms, int64), big-endian"
        )
    number = int.from_bytes(value, "big", signed=True)
    if number < 0:
        raise InvalidLifetime(f"{EXPIRE_TIME} = {number}: negative")
    return (number, None) if width == 4 else (None, number)


def _quote_value(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = ascii(value[:40].decode("utf-8", "replace"))
    return text + ("…" if len(value) > 40 else "")
