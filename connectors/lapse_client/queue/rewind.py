"""A rewind in words: where it begins, and which messages it left out (Q22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.protocol.bookmark import Bookmark
from lapse_client.reading.instant import instant_ms

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


def left_out(counts: Mapping[str, int]) -> str:
    """What a rewind left out, as people say it; empty if nothing.

    Args:
        counts: the answer to the rewind.
    """
    return ", ".join(f"{count:,} {_LEFT_OUT[why]}" for why, count in counts.items() if count and why in _LEFT_OUT)


def point(text: str) -> str:
    """From where on a rewind goes, as its command says it.

    Args:
        text: `beginning`, an instant in ms since the epoch or ISO 8601, or a bookmark, or several with commas.

    Raises:
        ValueError: it is none of them.
    """
    wanted = text.strip()
    if wanted == "beginning":
        return wanted
    try:
        return str(instant_ms(wanted))
    except ValueError:
        pass
    try:
        return ",".join(str(Bookmark.parse(one.strip())) for one in wanted.split(","))
    except ValueError:
        raise ValueError(
            f"to: expected beginning, an instant (2026-01-31T12:00:00, or ms since the epoch) or a bookmark such as "
            f"orders:0:1200, not {text[:40]!r}"
        ) from None
