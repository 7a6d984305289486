"""Signatures of commands: who says so, since a Kafka record does not (X4)."""

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
    """What the headers of a record say of its author.

    Attributes:
        user: who it claims to be from; empty = it does not say.
        at_ms: when it was signed, ms since the epoch.
        signature: the proof; empty = there is none that could be one.
    """

    user: str
    at_ms: int = 0
    signature: bytes = b""


def sign(key: bytes, user: str, topic: str, partition: int, at_ms: int, value: bytes) -> bytes:
    """The signature of a record: HMAC-SHA-256 over who, where, when and what, as 32 bytes."""
    head = f"{_VERSION}\n{user}\n{topic}\n{partition}\n{at_ms}\n".encode()
    return hmac.digest(key, head + value, sha256)


def headers(key: bytes, user: str, topic: str, partition: int, at_ms: int, value: bytes) -> list[tuple[str, bytes]]:
    """The headers that a signed record bears."""
    signature = sign(key, user, topic, partition, at_ms, value)
    return [
        (header.USER, user.encode()),
        (header.SIGNED_AT_MS, b"%d" % at_ms),
        (header.SIGNATURE, signature.hex().encode()),
    ]


def read(found: Iterable[tuple[str, bytes | None]]) -> Signed:
    """Read the headers of a record; what is not as it has to be counts as not there."""
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
    """Whether a record is from who it says, by any of that user's keys; takes the same time whatever is wrong."""
    right = False
    for key in keys:
        own = sign(key, signed.user, topic, partition, signed.at_ms, value)
        right |= hmac.compare_digest(own, signed.signature)
    return right


def keys_in(text: str) -> tuple[bytes, ...]:
    """The keys in a text, one per line.

    Raises:
        ValueError: there is none, or one is too short; the text does not show it.
    """
    found = tuple(line.strip().encode() for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError("holds no key")
    if any(len(key) < LEAST_KEY_BYTES for key in found):
        raise ValueError(f"holds a key of less than {LEAST_KEY_BYTES} bytes; `openssl rand -hex 32` makes a good one")
    return found
