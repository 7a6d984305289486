"""Recovery point: where a new queue begins to read (Q16)."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator

from lapse.config.fault import first_repeated
from lapse.core.days import LATEST_MS
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.instant import check_unit, instant_ms

BEGINNING: Final = "recovery_point"
"""The key of a queue's settings that says where it begins."""

_EXPECTED = (
    'expected "beginning", "end", an instant such as "2026-01-31T12:00:00Z" or in ms since the epoch, or a bookmark '
    'such as "orders:0:1200", '
    "or a list of bookmarks, one for each partition"
)


def recovery_point(value: object) -> object:
    """Parse a recovery point. Instants become ms since the epoch, and bookmarks a tuple.

    `2026-01-31T12:00:00` could also be a bookmark of a topic `2026-01-31T12`. It is read as the instant.

    Raises:
        ValueError: the value is not a recovery point; the message says what is expected, and what is wrong.
    """
    if value in ("beginning", "end"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        if value > LATEST_MS:  # Kafka takes none that needs more than 63 bits
            raise ValueError(f"{value} is no instant in ms since the epoch: the latest is {LATEST_MS}")
        check_unit(value)
        return value
    if (at_ms := _written_instant_ms(value)) is not None:
        return at_ms
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{_EXPECTED}, not {value!r}")
    try:
        bookmarks = tuple(Bookmark.parse(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"{_EXPECTED}; {error}") from error
    if (twice := first_repeated((one.topic, one.partition) for one in bookmarks)) is not None:
        raise ValueError(f"two bookmarks for {twice[0]}:{twice[1]}; one for each partition")
    return bookmarks


def _written_instant_ms(value: object) -> int | None:
    """Return an instant that is written as a text, or as a date or time of TOML, in ms since the epoch; else None."""
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str):
        return None
    try:
        return instant_ms(text.strip())
    except (ValueError, OverflowError):
        return None


RecoveryPoint = Annotated[Literal["beginning", "end"] | int | tuple[Bookmark, ...], BeforeValidator(recovery_point)]
