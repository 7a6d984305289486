"""Payloads in JSON: read fast, or without loss where they are written again (S1, S2)."""

from __future__ import annotations

import json
import re
from typing import Final

import orjson

_MAY_EXCEED: Final = re.compile(rb"[0-9]{19}").search
"""Whether there are digits enough for an integer beyond 64 bits."""


def parse(data: bytes) -> object:
    """Read a payload fast; an integer beyond 64 bits becomes a float.

    Raises:
        ValueError: it is no JSON. `NaN` and `Infinity` are not, nor are numbers beyond a float's range.
    """
    return orjson.loads(data)


def parse_exactly(data: bytes) -> object:
    """Read a payload, integers of any size as they are: what is not touched by a delta must not change.

    Raises:
        ValueError: it is no JSON.
    """
    value: object = orjson.loads(data)
    if _MAY_EXCEED(data):
        try:
            return json.loads(data)
        except (ValueError, RecursionError):  # more digits than Python reads, or deeper than it goes
            pass
    return value


def serialize_any(value: object) -> bytes:
    """Write what is not from JSON: bytes as a text of their values up to 255, as Avro does; NaN and Infinity as null.

    Raises:
        TypeError: it cannot be written in JSON.
    """
    return orjson.dumps(value, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(f"not for JSON: {type(value).__name__}")


def serialize(value: object, like: bytes = b"") -> bytes:
    """Write a payload.

    Args:
        value: what it says.
        like: the payload in whose form it is written; JSON has one form only.

    Raises:
        TypeError: it cannot be written in JSON.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or nested too deeply
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
