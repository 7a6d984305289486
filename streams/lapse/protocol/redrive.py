"""Redrive: the records that dead letters become when they are sent back (D5, C29, C30)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Final

from lapse.core import letter
from lapse.protocol import header, topic

MAX_REDRIVES: Final = 3
"""The default loop limit: a letter that was redriven this often is not sent again."""
NO_ENTITY: Final = "no such entity"
"""Why a letter is refused whose queue or SOW topic was deleted. No other one would take its record (C29)."""

NOT_READ: Final = "entity reads other topics"
"""Why a letter is refused whose queue or SOW topic does not read the message's topic any more. All others would skip
its record (C29)."""
NO_TARGET: Final = "not a topic for letters"
"""Why a letter is refused that would go to a topic of lapse or Kafka, or by a wish to a dead-letter topic."""

_REMEDY: Final = "send letters to a topic that publishers write to"

OWN: Final = (
    frozenset(
        {
            header.REDRIVE_QUEUE,
            header.TRANSFER,
            header.TRANSFER_FROM,
            header.TRANSFER_COUNTS,
            header.MESSAGE_ID,
            header.RECORD_KEY,
            *header.ORIGIN_NAMES,
            *header.DEAD_LETTER_NAMES,
        }
    )
    | letter.MARKERS
)
"""Headers of a letter that the redriven record lacks, or has with other values."""

OF_FIRST: Final = {kept: kept if name == header.EXPIRES_AT_MS else name for name, kept in header.FIRST_NAMES.items()}
"""By header of a letter's letter that describes the first one: its name on the redriven first letter (C54)."""

OF_SECOND: Final = header.FIRST_NAMES[header.LAPSE_ID]
"""A header of each letter's letter whose first one is of lapse. A redriven first letter does not have it."""

OF_OTHERS: Final = letter.MARKERS - header.DEAD_LETTER_NAMES
"""Headers of other systems' letters, which a letter of lapse has if its message was such a letter."""


REDRIVEN: Final = b"redrive/"
"""Prefix of the message id of a redriven record."""


def target_fault(target: str, letters: str = "", letter_topics: Container[str] = ()) -> str:
    """Return why letters cannot be sent to a topic; empty if they can.

    A letter that is sent to another topic is a plain record there. On a dead-letter topic nothing would say of it whose
    letter it is, or why its message died.

    Args:
        target: the topic.
        letters: the dead-letter topic that contains them.
        letter_topics: dead-letter topics that do not have the usual prefix.
    """
    if _is_own(target):
        return f"{target} is a topic that lapse or Kafka writes itself; {_REMEDY}"
    if target and target == letters:
        return f"{target} is where these letters are"
    if target.startswith(topic.DEAD_LETTER_PREFIX) or target in letter_topics:
        return f"{target} is a dead-letter topic; {_REMEDY}"
    return ""


def _is_own(name: str) -> bool:
    return name.startswith(("__", topic.PREFIX)) or name.endswith("-changelog")


def partition_fault(origin: str, partition: int, topics: Mapping[str, int]) -> str:
    """Return why a letter cannot be sent to the partition of its message; empty if it can.

    Args:
        origin: the topic of the message.
        partition: the partition of the message.
        topics: number of partitions by existing topic.
    """
    if _is_own(origin):  # a dead-letter topic may be one: a queue over it has letters, too (C54)
        return NO_TARGET
    if origin not in topics:
        return "no such topic"
    return "" if partition < topics[origin] else "no such partition"


_AGAIN: Final = re.compile(r"(/\d+)\+\d+\Z", re.ASCII)


def message_id(lapse_id: str, before: int = 0) -> str:
    """Return the message id of a redriven record, by which an accidental repeat is dropped (X6).

    Args:
        lapse_id: id of the letter.
        before: how often the letter was sent before on purpose, which makes another id.
    """
    return f"{REDRIVEN.decode()}{lapse_id}{f'+{before}' if before else ''}"


def parse_message_id(message_id: str) -> str:
    """Return the id of the letter whose redriven record has a message id; empty if no redrive gave it."""
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
    """Return the headers of a redriven record.

    If the message was a dead letter itself, the redriven record is that letter again.

    Args:
        letter: the dead letter's headers.
        lapse_id: the dead letter's id.
        redriven_count: how often the message was redriven before.
        before: how often this letter was sent before (C58).
        queue: the only queue that takes the record (C29); empty = every queue.
        lifetime: name and value of a lifetime header, ms; None = the default applies (C30).
    """
    letter = list(letter)
    dropped = OWN - OF_OTHERS if queue else OWN | OF_FIRST.keys()
    if all(name != OF_SECOND for name, _ in letter):
        dropped |= {header.FIRST_EXPIRES_AT_MS}
    built = [(OF_FIRST.get(name, name), value) for name, value in letter if name not in dropped]
    built.append((header.REDRIVEN_COUNT, str(redriven_count + 1).encode()))
    if lapse_id:
        built.append((header.MESSAGE_ID, message_id(lapse_id, before).encode()))
    if queue:
        built.append((header.REDRIVE_QUEUE, queue.encode()))
    if lifetime is not None:
        built.append((lifetime[0], str(lifetime[1]).encode()))
    return built
