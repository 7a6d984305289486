"""Keys of records: the Kafka record key, or fields of the payload (S1)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

_MAX_EXACT: Final = 1 << 53

MOST_BYTES: Final = 32 << 10


class NoKey(ValueError):
    """A record without its key; the text says which field is missing or unfit."""


def path(text: str) -> tuple[str, ...]:
    """Split a path like `/order/symbol` into the names of nested fields.

    Raises:
        ValueError: it does not begin with `/`, or has an empty part.
    """
    parts = tuple(text.split("/")[1:])
    if not text.startswith("/") or not all(parts):
        raise ValueError(f"{text!r} is no path to a field; write it like /order/symbol")
    return parts


def of_payload(payload: object, paths: Sequence[tuple[str, ...]]) -> bytes:
    """Return the canonical JSON of the key fields: a list of their values, without spaces, in UTF-8.

    A number that is whole is written as an integer, so that `1`, `1.0` and `1e0` are one key.

    Raises:
        NoKey: a field is missing or null, or is an object, a list, bytes, or no finite number; or the key is too long.
    """
    text = json.dumps([_scalar(payload, names) for names in paths], ensure_ascii=False, separators=(",", ":"))
    key = text.encode("utf-8", "surrogatepass")
    if len(key) > MOST_BYTES:
        raise NoKey(f"the key has {len(key):,} bytes; {MOST_BYTES:,} is the most that a key from a payload may have")
    return key


def _scalar(payload: object, names: tuple[str, ...]) -> str | int | float:
    value = payload
    for name in names:
        if not isinstance(value, dict):
            value = None
            break
        value = value.get(name)
    shown = "/" + "/".join(names)
    if value is None:
        raise NoKey(f"the key field {shown} is missing or null")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoKey(f"the key field {shown} is {value}, no finite number")
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
    if isinstance(value, (str, int)):
        return value
    kinds = {"dict": "an object", "list": "an array"}
    what = kinds.get(type(value).__name__, f"of type {type(value).__name__}")
    raise NoKey(f"the key field {shown} is {what}; a key is a string, a number or a boolean")
