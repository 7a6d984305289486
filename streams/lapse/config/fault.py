"""A fault in a place of the configuration that its own field could not find."""

from __future__ import annotations

from pydantic_core import PydanticCustomError


def fault(place: tuple[str, ...], text: str) -> PydanticCustomError:
    """What a validator raises to say where the fault is.

    Args:
        place: the keys that lead there from the top of the file, such as `("queue", "orders", "forward_to")`.
        text: what is wrong.
    """
    return PydanticCustomError("placed", "{text}", {"place": place, "text": text})


def misfit(key: str, text: str) -> PydanticCustomError:
    """What a validator of a whole table raises: the setting that has to change, and what is wrong with it.

    Args:
        key: which setting of the table.
        text: what is wrong.
    """
    return PydanticCustomError("misfit", "{text}", {"key": key, "text": text})
