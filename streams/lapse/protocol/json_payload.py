"""JSON payloads: reads them fast, or without loss if they are written again (S1, S2)."""

from __future__ import annotations

import json
import re
from typing import Final

import orjson

_MAY_EXCEED: Final = re.compile(rb"[0-9]{19}").search
"""Finds enough digits for an integer beyond 64 bits."""


def parse(data: bytes) -> object:
    """Parse a payload fast. An integer beyond 64 bits becomes a float.

    Raises:
        ValueError: it is not JSON. `NaN`, `Infinity` and numbers beyond a float's range are not JSON.
    """
    return orjson.loads(data)


def parse_exactly(data: bytes) -> object:
    """Parse a payload with integers of any size, because a delta must not change other fields.

    Raises:
        ValueError: it is not JSON.
    """
    value: object = orjson.loads(data)
    if _MAY_EXCEED(data):
        try:
            return json.loads(data)
        except (ValueError, RecursionError):  # more digits or levels than Python's parser accepts
            pass
    return value


def serialize_any(value: object) -> bytes:
    """Write a value that is not from JSON: bytes as Latin-1 text, as Avro does, NaN and Infinity as null.

    Raises:
        TypeError: the value has no JSON form.
    """
    return orjson.dumps(value, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(f"not for JSON: {type(value).__name__}")


def serialize(value: object, like: bytes = b"") -> bytes:
    """Write a payload.

    Args:
        value: its value.
        like: ignored, since JSON has only one form.

    Raises:
        TypeError: the value has no JSON form.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or nested too deeply
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
