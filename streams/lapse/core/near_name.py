"""The name that somebody probably meant (X7)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_COMPARED_CHARACTERS: Final = 40
"""Names are short: of a longer text only the beginning is compared."""

_ALIKE: Final = 0.75
"""How much of two names must be the same, so that `explode` is not taken for `expire`."""


def question(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest known name was meant, in brackets behind a space; empty where none is near.

    Args:
        name: what is not known.
        known: what is.
    """
    near = get_close_matches(name[:_COMPARED_CHARACTERS], known, 1, _ALIKE)
    return f" (did you mean {near[0]!r}?)" if near else ""
