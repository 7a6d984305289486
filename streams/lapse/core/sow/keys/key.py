"""Keys of records that are made of payload fields (S1)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Final

from lapse.core.sow.keys import field_path

_MAX_EXACT: Final = 1 << 53
_MAX_FAST: Final = 1 << 63

MOST_BYTES: Final = 32 << 10
_MOST_SHOWN: Final = 100

_TEXTS: Final = re.compile(rb'\["[^"\\\x00-\x1f]*"(?:,"[^"\\\x00-\x1f]*")*\]')
"""Matches keys of plain texts only, whose form is canonical already."""


class NoKey(ValueError):
    """A record has no valid key. The text says which field is missing or unsuitable."""


class InexactKey(ValueError):
    """A key contains a float that may have been an integer beyond 64 bits before it was parsed."""


def key_from_payload(payload: object, paths: Sequence[field_path.Steps], exact: bool = False) -> bytes:
    """Return the canonical JSON of the key fields: a list of their values, without spaces, in UTF-8.

    A whole number is written as an integer, so `1`, `1.0` and `1e0` are the same key.

    Args:
        payload: the parsed payload.
        paths: the key fields.
        exact: whether the payload was parsed without loss.

    Raises:
        InexactKey: the payload must be parsed without loss first.
        NoKey: a field is missing, null, an object, an array, bytes or not a finite number, or the key is too long.
    """
    values = [_scalar(field_path.value_at(payload, steps), field_path.format_path(steps)) for steps in paths]
    if not exact and any(isinstance(value, float) and abs(value) >= _MAX_FAST for value in values):
        raise InexactKey
    return _encode_key(values)


def canonical_key(text: bytes, paths: Sequence[field_path.Steps]) -> bytes:
    """Return the canonical form of a key given as text, in which spaces, escapes and `1.0` make no difference.

    If the key is one field, the field's text alone is accepted as well.

    Args:
        text: a JSON list of the fields' values.
        paths: the key fields.

    Raises:
        NoKey: the text is not such a list.
    """
    if _TEXTS.fullmatch(text) and text.count(b'"') == 2 * len(paths):
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if len(paths) == 1 and not isinstance(values, list):
        if isinstance(values, (int, float)):
            readable = text.decode("utf-8", "replace").strip()
            raise NoKey(f"{_quote_text(text)} may be a text or not: write [{json.dumps(readable)}] or [{readable}]")
        if values is None:
            values = text.decode("utf-8", "replace")
        values = [values]
    if not isinstance(values, list) or len(values) != len(paths):
        fields = ", ".join(map(field_path.format_path, paths))
        like = json.dumps(["…" for _ in paths], ensure_ascii=False, separators=(",", ":"))
        raise NoKey(f"{_quote_text(text)} is no key here: a key is a JSON list of {fields}, such as {like}")
    return _encode_key(
        [_scalar(value, field_path.format_path(steps)) for value, steps in zip(values, paths, strict=True)]
    )


def _quote_text(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…")


def _encode_key(values: Sequence[str | int | float]) -> bytes:
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    key = text.encode("utf-8", "surrogatepass")
    if len(key) > MOST_BYTES:
        raise NoKey(f"the key has {len(key):,} bytes; {MOST_BYTES:,} is the most that a key from a payload may have")
    return key


def _scalar(value: object, field: str) -> str | int | float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoKey(f"the key field {field} is {value}, no finite number")
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
    if isinstance(value, (str, int)):
        return value
    if value is None:
        raise NoKey(f"the key field {field} is missing or null")
    kinds = {"dict": "an object", "list": "an array"}
    what = kinds.get(type(value).__name__, f"of type {type(value).__name__}")
    raise NoKey(f"the key field {field} is {what}; a key is a string, a number or a boolean")
