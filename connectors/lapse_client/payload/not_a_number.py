"""Refuses NaN and infinities in JSON, which JSON writers would silently turn into `null`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from lapse_client.error import InvalidPayload


def refuse_unwritable_numbers(value: Any, written: bytes) -> None:
    """Refuse a value in which a number was written as `null`.

    Args:
        value: dictionaries, lists, dataclasses and plain values.
        written: the value as JSON. If it has no `null`, nothing is searched.

    Raises:
        InvalidPayload: a number is not finite; the text names its field.
    """
    if (place := unwritable_number(value, written)) is not None:
        raise InvalidPayload(f"the payload is no JSON: {place or 'it'} is NaN or infinite, which JSON cannot say")


def unwritable_number(value: Any, written: bytes) -> str | None:
    """Return the path of a number that was written as `null`; "" = the value itself, None = there is none."""
    return _place(value) if b"null" in written else None


def _place(value: Any) -> str | None:
    """Return the path of the first number that is not finite; "" = the value itself, None = there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    for name, part in parts:
        if (place := _place(part)) is not None:
            return f"{name}.{place}" if place else str(name)
    return None
