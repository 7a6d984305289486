"""Keys that a JSON object has twice: a parser keeps one of them, and nobody knows which was meant (X7)."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_MAY_BE_COLON: Final = rb"\u003"
"""The beginning of an escaped colon."""

_SHOWN: Final = 60
"""How many characters of a key are shown."""


def repeated_key(data: bytes, found: object) -> str | None:
    """Return a key that an object in a JSON text has twice, at any depth; None if there is none.

    Args:
        data: the text, in UTF-8.
        found: what orjson has made of it.
    """
    try:
        if data.count(b":") == orjson.dumps(found).count(b":") and _MAY_BE_COLON not in data:
            return None  # each key has a colon, and texts keep theirs
        json.loads(data, object_pairs_hook=_pairs, parse_float=str, parse_int=str)
    except _Repeated as error:
        return error.key[:_SHOWN]
    except (orjson.JSONEncodeError, RecursionError):  # nested deeper than anything that lapse takes
        return None
    return None


def check_keys(data: bytes, found: object) -> None:
    """Check that no object in a JSON text has a key twice; see `repeated_key`.

    Raises:
        ValueError: one has; the text names the key.
    """
    if (key := repeated_key(data, found)) is not None:
        raise ValueError(f"key {key!r} is there twice in an object; give it once")


class _Repeated(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(key)
            seen.add(key)
    return found
