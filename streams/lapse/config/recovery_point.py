"""Recovery point: where a new queue begins to read (Q16)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from lapse.config.fault import first_repeated
from lapse.core.days import LATEST_MS
from lapse.protocol.bookmark import Bookmark

_EXPECTED = (
    'expected "beginning", "end", an instant in ms since the epoch, or a bookmark such as "orders:0:1200", '
    "or a list of bookmarks, one for each partition"
)


def recovery_point(value: object) -> object:
    """Parse a recovery point. Bookmarks become a tuple.

    Raises:
        ValueError: the value is not a recovery point; the message says what is expected, and what is wrong.
    """
    if value in ("beginning", "end"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        if value > LATEST_MS:  # Kafka takes none that needs more than 63 bits
            raise ValueError(f"{value} is no instant in ms since the epoch: the latest is {LATEST_MS}")
        return value
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


RecoveryPoint = Annotated[Literal["beginning", "end"] | int | tuple[Bookmark, ...], BeforeValidator(recovery_point)]
