"""Publications: the options of a publish, which are checked before anything is sent (L2 to L5, X6, X7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lapse.core import lifetime
from lapse.core.days import LATEST_MS
from lapse.protocol import header
from lapse_client.error import InvalidPublication

Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
BuiltHeaders = list[tuple[str, str | bytes | None]]

_LONGEST_MS: Final = lifetime.NEVER - LATEST_MS - 1
"""The longest relative lifetime that is valid for any arrival, in ms. No arrival is later than the year 9999, so that
no clock is needed."""

_PAIR: Final = 2

_TYPED_LIFETIMES: Final = (lifetime.TTL_MS, lifetime.EXPIRES_AT_MS, lifetime.EXPIRE_TIME, lifetime.CE_EXPIRYTIME)


def headers(
    value: object,
    own: Headers | None = None,
    *,
    ttl_ms: int | None = None,
    expires_at_ms: int | None = None,
    enqueue_at_ms: int | None = None,
    message_id: str | None = None,
    delta: bool = False,
) -> BuiltHeaders:
    """Build the headers of a record, and refuse values that a worker would refuse.

    Args:
        value: value of the record, which a delta needs.
        own: further headers; text is sent as UTF-8.
        ttl_ms: relative lifetime, ms; 0 = never expires.
        expires_at_ms: deadline, ms since the epoch.
        enqueue_at_ms: invisible before this instant, ms since the epoch.
        message_id: id of the message. A second message with it within the entity's window is dropped.
        delta: whether to merge into the stored record of a SOW topic, instead of replacing it.

    Raises:
        InvalidPublication: a value is out of range, there are two lifetimes, a further header contradicts an option,
            or a delta has no value.
    """
    _check_delta(delta, value)
    built: BuiltHeaders = [_checked(*item) for item in items(own)]
    is_plain = not any(name in lifetime.NAMES for name, _ in built)
    if ttl_ms is not None:
        built.append((lifetime.TTL_MS, _number("ttl_ms", ttl_ms)))
        is_plain = is_plain and ttl_ms <= _LONGEST_MS and expires_at_ms is None and enqueue_at_ms is None
    if expires_at_ms is not None:
        built.append((lifetime.EXPIRES_AT_MS, _number("expires_at_ms", expires_at_ms)))
    if enqueue_at_ms is not None:
        built.append((lifetime.ENQUEUE_AT_MS, _number("enqueue_at_ms", enqueue_at_ms)))
    if message_id is not None:
        _state(built, header.MESSAGE_ID, _text("message_id", message_id))
    if delta:
        _state(built, header.COMMAND, b"delta")
    if not is_plain:  # nearly all records have one plain lifetime or none, and need no further check
        _check_lifetimes(built)
    return built


def _check_delta(delta: object, value: object) -> None:
    if not isinstance(delta, bool):
        raise InvalidPublication(f"delta = {delta!r}: expected True or False")
    if delta and value is None:
        raise InvalidPublication("delta needs a value; publish None without delta to delete the record")


def payload(what: str, value: object) -> bytes | None:
    """Return the bytes of a payload or key; text as UTF-8.

    Raises:
        InvalidPublication: the value is neither text nor bytes nor None.
    """
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        kind = type(value).__name__
        raise InvalidPublication(f"{what}: expected text, bytes or None, not {kind}; write it first, as by json.dumps")
    return _utf8(what, value)


def items(own: Headers | None) -> Iterable[tuple[str, str | bytes | None]]:
    """Return headers as pairs, from a mapping or from pairs.

    Raises:
        InvalidPublication: they are neither.
    """
    if own is None:
        return ()
    if isinstance(own, Mapping):
        return own.items()
    return _pairs(own)


def _pairs(own: Any) -> list[tuple[str, str | bytes | None]]:
    if isinstance(own, str | bytes) or not isinstance(own, Iterable):
        raise InvalidPublication(f"headers = {own!r}: expected a mapping, or pairs of a name and a value")
    pairs = list(own)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != _PAIR:
            raise InvalidPublication(f"headers: {pair!r}: expected a pair of a name and a value")
    return pairs


def _checked(name: object, value: object) -> tuple[str, bytes | None]:
    if not isinstance(name, str) or not name:
        raise InvalidPublication(f"header name {name!r}: expected text that is not empty")
    if value is not None and not isinstance(value, str | bytes):
        raise InvalidPublication(f"header {name} = {value!r}: expected text, bytes or None")
    if not name.isascii():  # librdkafka aborts the process for a name that is not UTF-8
        _utf8(f"header name {name!r}", name)
    return name, _utf8(f"header {name}", value) if isinstance(value, str) else value


def _text(what: str, value: object) -> bytes:
    if not isinstance(value, str) or not value:
        raise InvalidPublication(f"{what} = {value!r}: expected text that is not empty")
    return _utf8(what, value)


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # lone surrogates, such as Python's for arguments that are not UTF-8
        raise InvalidPublication(f"{what}: no text that UTF-8 can hold: {error}") from error


def _number(what: str, value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidPublication(f"{what} = {value!r}: expected a whole number of milliseconds")
    if not 0 <= value <= lifetime.NEVER:
        raise InvalidPublication(f"{what} = {value}: expected 0 to {lifetime.NEVER} milliseconds")
    return b"%d" % value


def _state(built: BuiltHeaders, name: str, value: bytes) -> None:
    """Add the header of an option."""
    for stated, other in built:
        if stated == name and other != value:
            raise InvalidPublication(f"header {name} = {other!r} and an option that means {value!r}: give one of them")
    built.append((name, value))


def _check_lifetimes(built: BuiltHeaders) -> None:
    concerned = [
        (name, value.encode() if isinstance(value, str) else value) for name, value in built if name in lifetime.NAMES
    ]
    if not concerned:
        return
    stated = [name for name, _ in concerned if name in _TYPED_LIFETIMES]
    if len(stated) > 1:
        raise InvalidPublication(f"two lifetimes at once ({' and '.join(stated)}): state one of them")
    try:
        found = lifetime.read(concerned, LATEST_MS)
        lifetime.deadline_ms(found, LATEST_MS, lifetime.Expiration(enabled=True))
    except lifetime.InvalidLifetime as error:
        raise InvalidPublication(f"{error}; nothing was sent") from error
