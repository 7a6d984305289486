"""Keys of records: the Kafka record key, or fields of the payload (S1)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from lapse.core.sow import field_path

_MAX_EXACT: Final = 1 << 53
_MAX_FAST: Final = 1 << 63

MOST_BYTES: Final = 32 << 10


class NoKey(ValueError):
    """A record without its key; the text says which field is missing or unfit."""


class InexactKey(ValueError):
    """A key with a number that may have been an integer beyond 64 bits before it was read as a float."""


def of_payload(payload: object, paths: Sequence[field_path.Steps], exact: bool = False) -> bytes:
    """Return the canonical JSON of the key fields: a list of their values, without spaces, in UTF-8.

    A number that is whole is written as an integer, so that `1`, `1.0` and `1e0` are one key.

    Args:
        payload: the parsed payload.
        paths: the key fields.
        exact: whether it was parsed without loss.

    Raises:
        InexactKey: only a payload parsed without loss can tell.
        NoKey: a field is missing or null, or is an object, a list, bytes, or no finite number; or the key is too long.
    """
    values = [_scalar(payload, steps) for steps in paths]
    if not exact and any(isinstance(value, float) and abs(value) >= _MAX_FAST for value in values):
        raise InexactKey
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    key = text.encode("utf-8", "surrogatepass")
    if len(key) > MOST_BYTES:
        raise NoKey(f"the key has {len(key):,} bytes; {MOST_BYTES:,} is the most that a key from a payload may have")
    return key


def _scalar(payload: object, steps: field_path.Steps) -> str | int | float:
    value = field_path.value_at(payload, steps)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoKey(f"the key field {field_path.shown(steps)} is {value}, no finite number")
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
    if isinstance(value, (str, int)):
        return value
    if value is None:
        raise NoKey(f"the key field {field_path.shown(steps)} is missing or null")
    kinds = {"dict": "an object", "list": "an array"}
    what = kinds.get(type(value).__name__, f"of type {type(value).__name__}")
    raise NoKey(f"the key field {field_path.shown(steps)} is {what}; a key is a string, a number or a boolean")
