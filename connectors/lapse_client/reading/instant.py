"""Instants as readable texts."""

from __future__ import annotations

from lapse.protocol.instant import EPOCH, MILLISECOND


def shown(at_ms: int | None) -> str:
    """Format an instant, ms since the epoch, for a table whose heading says UTC; empty for None.

    The text is `2026-01-31 12:00:00`, with `.250` added if it has milliseconds. `instant_ms` reads it back.
    """
    if at_ms is None:
        return ""
    try:
        found = (EPOCH + at_ms * MILLISECOND).replace(tzinfo=None)
    except OverflowError:
        return f"epoch + {at_ms} ms"  # beyond the range of `datetime`
    return found.isoformat(" ", timespec="milliseconds").removesuffix(".000")
