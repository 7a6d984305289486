"""Faults of the configuration that concern another key than the validated one."""

from __future__ import annotations

from pydantic_core import PydanticCustomError


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
