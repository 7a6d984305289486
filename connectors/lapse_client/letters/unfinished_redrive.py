"""Notes of redrives that have begun and not ended, so that no other one sends their letters meanwhile (C58).

Spark's Kafka sink has no transactions. What a killed job has sent is found only on the topics to which it sent, and
only with the job's directory. So a job notes on `lapse.redriven` whose letters it is about to send. It takes the note
back when every letter that it has sent has a note of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from lapse_client.error import RedriveUnfinished
from lapse_client.reading.instant import shown

PREFIX: Final = "unfinished:"
"""How the keys of these notes begin. No name of a letter has a colon before its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRedrive:
    """A note that a redrive by Spark has begun.

    Attributes:
        letters: the dead-letter topic.
        audit: id of the job's directory.
        directory: the job's directory, as its command named it.
        begun_at_ms: when it began, ms since the epoch.
    """

    letters: str
    audit: str
    directory: str
    begun_at_ms: int

    @property
    def key(self) -> bytes:
        """The note's key on `lapse.redriven`."""
        return f"{PREFIX}{self.letters}:{self.audit}".encode()

    @property
    def value(self) -> bytes:
        """The note's value on `lapse.redriven`. A null value ends it."""
        facts = {
            "letters": self.letters,
            "audit": self.audit,
            "directory": self.directory,
            "begun_at_ms": self.begun_at_ms,
        }
        return orjson.dumps(facts)

    @classmethod
    def parse(cls, value: bytes) -> UnfinishedRedrive:
        """Return the note with a value.

        Raises:
            ValueError: it is no such note.
        """
        facts = orjson.loads(value)
        try:
            return cls(
                letters=str(facts["letters"]),
                audit=str(facts["audit"]),
                directory=str(facts["directory"]),
                begun_at_ms=int(facts["begun_at_ms"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{value!r} is no note of a redrive that has begun") from error


def refusal(found: Iterable[UnfinishedRedrive]) -> str:
    """Return why letters must not be sent while other redrives of them have not ended; empty if there are none.

    Args:
        found: the redrives that have begun and not ended, with letters of the same topics.

    Returns:
        A text that names the job's directory and what to do.
    """
    for one in found:
        return (
            f"lapse spark redrive with the directory {one.directory} began to send letters of {one.letters} at "
            f"{shown(one.begun_at_ms)} UTC, and has not ended. Nothing was sent here. Wait for its end. If it was "
            "killed, run it again with --send and that directory: it finds what it has sent. If the directory is lost, "
            "run lapse dlq redrive or lapse spark redrive with --end-unfinished: letters that it sent without a note "
            "are sent twice"
        )
    return ""


def refuse(found: Iterable[UnfinishedRedrive]) -> None:
    """Refuse to send letters while another redrive of them has not ended.

    Args:
        found: the redrives that have begun and not ended, with letters of the same topics.

    Raises:
        RedriveUnfinished: there is one. It names the job's directory and what to do.
    """
    if why := refusal(found):
        raise RedriveUnfinished(why)
