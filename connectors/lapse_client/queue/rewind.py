"""Texts of rewinds: parses where a rewind begins, and describes the messages that it left out (Q22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.instant import instant_ms

_LEFT_OUT: Final = {
    "live": "live",
    "elsewhere": "handed over or forwarded",
    "repeated": "repeated",
    "dead_on_arrival": "dead on arrival",
    "not_here": "not of this queue",
    "no_match": "that do not match",
    "expired": "past their deadlines",
    "invalid_lifetime": "whose lifetime would end too late for 64 bits",
}


def left_out_text(counts: Mapping[str, int]) -> str:
    """Return a readable list of the messages that a rewind left out; empty if there are none.

    Args:
        counts: the counts in the answer to the rewind.
    """
    return ", ".join(f"{count:,} {_LEFT_OUT[why]}" for why, count in counts.items() if count and why in _LEFT_OUT)


def point(text: str) -> str:
    """Parse where a rewind begins into the command's field `to`.

    Args:
        text: `beginning`, an instant in ms since the epoch or ISO 8601, or bookmarks separated by commas.

    Raises:
        ValueError: the text is none of these.
    """
    wanted = text.strip()
    if wanted == "beginning":
        return wanted
    try:
        return str(instant_ms(wanted))
    except ValueError as error:
        if wanted.isascii() and wanted.isdigit():
            raise ValueError(f"to: {error}") from error
    try:
        return ",".join(str(Bookmark.parse(one.strip())) for one in wanted.split(","))
    except ValueError:
        raise ValueError(
            f"to: expected beginning, an instant (2026-01-31T12:00:00, or ms since the epoch) or a bookmark such as "
            f"orders:0:1200, not {text[:40]!r}"
        ) from None
