"""Near names: suggests the known name that an unknown one probably means (X7)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_COMPARED_CHARACTERS: Final = 40
"""How many characters of a name are compared, since names are short."""

_ALIKE: Final = 0.75
"""The least similarity, from 0 to 1, of two near names. It keeps `explode` apart from `expire`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question in brackets, after a space, whether the nearest known name was meant; empty without one.

    Args:
        name: the unknown name.
        known: the known names.
    """
    near = get_close_matches(name[:_COMPARED_CHARACTERS], known, 1, _ALIKE)
    return f" (did you mean {near[0]!r}?)" if near else ""
