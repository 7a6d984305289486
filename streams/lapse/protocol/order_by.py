"""The form of `order_by`: an expression, with `ASC` or `DESC` behind it (S5)."""

from __future__ import annotations

import re
from typing import Final

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)


def split(text: str) -> tuple[str, bool]:
    """Return the expression, and whether the order is descending."""
    match = _DIRECTION.search(text)
    return (text, False) if match is None else (text[: match.start()], match[1].upper() == "DESC")
