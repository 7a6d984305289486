"""What a redrive does with letters, counted for the table of `lapse dlq redrive` (D5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lapse_client.letters.redrive import Line


class RedriveSummary:
    """Counts letters by entity, reasons, target and refusal. It keeps none of them, because they may be many.

    Args:
        lifetime: the option for their lifetimes.

    Attributes:
        ready: number of letters that are not refused.
    """

    def __init__(self, lifetime: str) -> None:
        self.ready = 0
        self._lifetime = lifetime
        self._letters: Counter[tuple[str, tuple[str, ...], str, str]] = Counter()
        self._passed: Counter[tuple[str, tuple[str, ...], str, str]] = Counter()

    def counting(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield lines, and count them."""
        for line in lines:
            group = line.letter.entity, tuple(line.letter.reasons), line.topic, line.refused
            self._letters[group] += 1
            self._passed[group] += line.deadline_passed
            self.ready += not line.refused
            yield line

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts so far."""
        return [
            {
                "entity": entity,
                "reasons": list(reasons),
                "to": target,
                "refused": refused,
                "letters": count,
                "deadline_passed": self._passed[entity, reasons, target, refused],
                "lifetime": self._lifetime,
            }
            for (entity, reasons, target, refused), count in sorted(self._letters.items())
        ]
