"""What a dead letter becomes when it is sent back (D5, C29, C30)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from lapse.core import letter
from lapse.protocol import header, topic

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
            header.RECORD_KEY,
            *header.DEAD_LETTER_NAMES,
        }
    )
    | letter.MARKERS
)
"""Headers of a letter that the redriven record does not have, or has with values of its own."""

OF_FIRST: Final = {kept: name for name, kept in header.FIRST_NAMES.items()}
"""Headers of a letter's letter that tell of the first one, and what they are called on that (C54)."""

OF_OTHERS: Final = letter.MARKERS - header.DEAD_LETTER_NAMES
"""Headers of other systems' letters: a letter of lapse bears them if its message was such a letter."""


REDRIVEN: Final = b"redrive/"
"""What the id of a redriven record begins with."""


def unfit(target: str, letters: str = "") -> str:
    """Why letters cannot be sent to a topic; empty where they can.

    Args:
        target: the topic.
        letters: the dead-letter topic that they are on.
    """
    if target.startswith(("__", topic.PREFIX)) or target.endswith("-changelog"):
        return (
            f"{target} is a topic that lapse or Kafka writes itself; send letters to a topic that publishers write to"
        )
    if target and target == letters:
        return f"{target} is where these letters are"
    return ""


def astray(origin: str, partition: int, topics: Mapping[str, int]) -> str:
    """Why a letter cannot return to where its message came from; empty where it can.

    Args:
        origin: the topic.
        partition: of it.
        topics: what there is: partitions by topic.
    """
    if unfit(origin):
        return "not a topic for letters"
    if origin not in topics:
        return "no such topic"
    return "" if partition < topics[origin] else "no such partition"


_AGAIN: Final = re.compile(r"(/\d+)\+\d+\Z", re.ASCII)


def message_id(lapse_id: str, before: int = 0) -> str:
    """The id of the redriven record: one that is sent twice is dropped once (X6).

    Args:
        lapse_id: the letter's.
        before: how often the letter was sent before. What is sent again on purpose is no repeat.
    """
    return f"{REDRIVEN.decode()}{lapse_id}{f'+{before}' if before else ''}"


def lapse_id_of(message_id: str) -> str:
    """The id of the letter that was sent as a record with this id; empty where a redrive did not give it."""
    if not message_id.startswith(REDRIVEN.decode()):
        return ""
    return _AGAIN.sub(r"\1", message_id[len(REDRIVEN) :])


def headers(
    letter: Iterable[tuple[str, bytes | None]],
    *,
    lapse_id: str,
    redriven_count: int,
    before: int = 0,
    queue: str = "",
    lifetime: tuple[str, int] | None = None,
) -> list[tuple[str, bytes | None]]:
    """Build the headers of a redriven record.

    Where the message was a dead letter itself, its record on the dead-letter topic is one again.

    Args:
        letter: the dead letter's.
        lapse_id: its id.
        redriven_count: how often it was redriven before.
        before: how often this letter was sent before (C58).
        queue: who lost it; every other queue skips the record (C29). Empty = for everybody.
        lifetime: a lifetime header and its value, ms; None = the default applies (C30).
    """
    dropped = OWN - OF_OTHERS if queue else OWN | OF_FIRST.keys()
    built = [(OF_FIRST.get(name, name), value) for name, value in letter if name not in dropped]
    built.append((header.REDRIVEN_COUNT, str(redriven_count + 1).encode()))
    if lapse_id:
        built.append((header.MESSAGE_ID, message_id(lapse_id, before).encode()))
    if queue:
        built.append((header.REDRIVE_QUEUE, queue.encode()))
    if lifetime is not None:
        built.append((lifetime[0], str(lifetime[1]).encode()))
    return built
