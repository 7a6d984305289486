"""Signatures of commands, which authenticate the sender, since a Kafka record does not name it (X4)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from lapse.protocol import header
from lapse.protocol.topic import USER_NAME

LEAST_KEY_BYTES: Final = 16

_VERSION: Final = "lapse-1"
_NUMBER: Final = re.compile(rb"[0-9]{1,15}\Z")
_DIGITS: Final = re.compile(rb"[0-9a-fA-F]{64}\Z")


class Signed(NamedTuple):
    """The statement of a record's headers about its author.

    Attributes:
        user: the claimed user; empty = not stated.
        at_ms: instant of signing, ms since the epoch.
        signature: the signature; empty = none, or not in the right form.
    """

    user: str
    at_ms: int = 0
    signature: bytes = b""


def sign(key: bytes, user: str, topic: str, partition: int, at_ms: int, value: bytes) -> bytes:
    """Return the signature of a record: HMAC-SHA-256 over user, topic, partition, instant and value, 32 bytes."""
    head = f"{_VERSION}\n{user}\n{topic}\n{partition}\n{at_ms}\n".encode()
    return hmac.digest(key, head + value, sha256)


def headers(key: bytes, user: str, topic: str, partition: int, at_ms: int, value: bytes) -> list[tuple[str, bytes]]:
    """Return the headers of a signed record."""
    signature = sign(key, user, topic, partition, at_ms, value)
    return [
        (header.USER, user.encode()),
        (header.SIGNED_AT_MS, b"%d" % at_ms),
        (header.SIGNATURE, signature.hex().encode()),
    ]


def read(found: Iterable[tuple[str, bytes | None]]) -> Signed:
    """Read the headers of a record. Invalid values count as missing."""
    fields = dict(found)
    name = fields.get(header.USER) or b""
    user = name.decode("ascii", "replace")
    at, digits = fields.get(header.SIGNED_AT_MS) or b"", fields.get(header.SIGNATURE) or b""
    if not USER_NAME.match(user) and name:
        return Signed(user)
    if not _NUMBER.match(at) or not _DIGITS.match(digits):
        return Signed(user)
    return Signed(user, int(at), bytes.fromhex(digits.decode()))


def is_right(signed: Signed, keys: Iterable[bytes], topic: str, partition: int, value: bytes) -> bool:
    """Return whether a record's signature matches any of the user's keys. The time does not depend on the fault."""
    right = False
    for key in keys:
        own = sign(key, signed.user, topic, partition, signed.at_ms, value)
        right |= hmac.compare_digest(own, signed.signature)
    return right


def keys_in(text: str) -> tuple[bytes, ...]:
    """Return the keys in a text, one per line.

    Raises:
        ValueError: there is no key, or one is too short; the message does not show keys.
    """
    found = tuple(line.strip().encode() for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError("holds no key")
    if any(len(key) < LEAST_KEY_BYTES for key in found):
        raise ValueError(f"holds a key of less than {LEAST_KEY_BYTES} bytes; `openssl rand -hex 32` makes a good one")
    return found
