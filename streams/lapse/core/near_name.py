"""Near names: suggests the known name that an unknown one probably means (X7)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

_COMPARED_CHARACTERS: Final = 40
"""How many characters of a name are compared, since names are short."""

_ALIKE: Final = 0.75
"""The least similarity, from 0 to 1, of two near names. It keeps `explode` apart from `expire`."""


_ALIKE_BEHIND: Final = 0.6
_CANDIDATES: Final = 5


def nearest(name: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known name that an unknown one probably means; None if none is near.

    A dotted beginning that both have, such as `dlq.`, makes them no more alike.

    Args:
        name: the unknown name.
        known: the known names.
        alike: the least similarity, from 0 to 1.
    """
    from difflib import get_close_matches  # a late import: most programs make no such mistake

    name = name[:_COMPARED_CHARACTERS]
    return next((one for one in get_close_matches(name, known, _CANDIDATES, alike) if _differ_little(name, one)), None)


def _differ_little(name: str, other: str) -> bool:
    """Return whether two names are alike behind the dotted beginning that they share."""
    from difflib import SequenceMatcher

    parts = zip(name.split(".")[:-1], other.split(".")[:-1], strict=False)
    shared = sum(len(one) + 1 for one, _ in takewhile(lambda both: both[0] == both[1], parts))
    return SequenceMatcher(None, other[shared:], name[shared:]).ratio() >= _ALIKE_BEHIND


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question in brackets, after a space, whether the nearest known name was meant; empty without one.

    Args:
        name: the unknown name.
        known: the known names.
    """
    near = nearest(name, known, _ALIKE)
    return f" (did you mean {near!r}?)" if near else ""
