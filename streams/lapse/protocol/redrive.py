"""What a dead letter becomes when it is sent back (D5, C29, C30)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lapse.core import letter
from lapse.protocol import header

MAX_REDRIVES: Final = 3
"""A letter that was redriven so often stays where it is, unless asked otherwise: the loop limit."""

OWN: Final = (
    frozenset(
        {
            header.REDRIVE_QUEUE,
            header.TRANSFER,
            header.TRANSFER_FROM,
            header.TRANSFER_COUNTS,
            header.MESSAGE_ID,
            *header.DEAD_LETTER_NAMES,
        }
    )
    | letter.MARKERS
)
"""Headers of a letter that the redriven record does not have, or has with values of its own."""


REDRIVEN: Final = b"redrive/"
"""What the id of a redriven record begins with."""


def message_id(lapse_id: str) -> str:
    """The id of the redriven record: one that is sent twice is dropped once (X6)."""
    return f"{REDRIVEN.decode()}{lapse_id}"


def headers(
    letter: Iterable[tuple[str, bytes | None]],
    *,
    lapse_id: str,
    redriven_count: int,
    queue: str = "",
    lifetime: tuple[str, int] | None = None,
) -> list[tuple[str, bytes | None]]:
    """Build the headers of a redriven record.

    Args:
        letter: the dead letter's.
        lapse_id: its id.
        redriven_count: how often it was redriven before.
        queue: who lost it; every other queue skips the record (C29). Empty = for everybody.
        lifetime: a lifetime header and its value, ms; None = the default applies (C30).
    """
    built = [(name, value) for name, value in letter if name not in OWN]
    built.append((header.REDRIVEN_COUNT, str(redriven_count + 1).encode()))
    if lapse_id:
        built.append((header.MESSAGE_ID, message_id(lapse_id).encode()))
    if queue:
        built.append((header.REDRIVE_QUEUE, queue.encode()))
    if lifetime is not None:
        built.append((lifetime[0], str(lifetime[1]).encode()))
    return built
