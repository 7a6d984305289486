"""A line of a redrive's plan: one letter, and whether and to which topic it is sent (D5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lapse_client.letters.dead_letter import DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One letter of a plan.

    Attributes:
        letter: the letter.
        topic: the topic that it is sent to.
        partition: partition of the topic; None = the key decides.
        headers: headers that it is sent with.
        refused: why it is not sent; empty if it is sent.
        deadline_passed: whether its original deadline has passed (C30).
    """

    letter: DeadLetter
    topic: str
    partition: int | None
    headers: list[tuple[str, bytes | None]] = field(repr=False)
    refused: str = ""
    deadline_passed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the line for an audit: the letter, its target topic, and the reasons of its message's removal."""
        letter = self.letter
        return {
            "letter": str(letter.bookmark),
            "origin": None if letter.origin is None else str(letter.origin),
            "entity": letter.entity,
            "reasons": list(letter.reasons),
            "lapse_id": letter.lapse_id,
            "redriven_count": letter.redriven_count + 1,
            "topic": self.topic,
            "refused": self.refused,
            "expires_at_ms": letter.expires_at_ms,
            "deadline_passed": self.deadline_passed,
        }
