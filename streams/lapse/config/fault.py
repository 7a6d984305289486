"""Faults of the configuration that concern another key than the validated one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from pydantic_core import PydanticCustomError

T = TypeVar("T", bound=Hashable)


def placed_error(place: tuple[str, ...], text: str) -> PydanticCustomError:
    """Return the error that a validator raises for a fault in a place that it names.

    Args:
        place: path of the key from the top of the file, such as `("queue", "orders", "forward_to")`.
        text: what is wrong.
    """
    return PydanticCustomError("placed", "{text}", {"place": place, "text": text})


def setting_error(key: str, text: str) -> PydanticCustomError:
    """Return the error that a validator of a whole table raises for one of its settings.

    Args:
        key: the setting of the table that must change.
        text: what is wrong.
    """
    return PydanticCustomError("misfit", "{text}", {"key": key, "text": text})


def first_repeated(values: Iterable[T]) -> T | None:
    """Return the first value that stands there twice; None if none does. A list may have many thousands."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
