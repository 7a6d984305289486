"""Instants as options say them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from lapse.config.duration import duration_ms
from lapse_client.reading.instant import instant_ms


@dataclass(frozen=True, slots=True)
class Ago:
    """A span before now, by the broker's clock.

    Attributes:
        ms: how long, ms.
    """

    ms: int


When = int | Ago
"""What an option says: an instant, ms since the epoch, or how long ago."""


def at_ms(when: When, now_ms: Callable[[], int]) -> int:
    """Return the instant that an option means, ms since the epoch; 0 of what is before 1970.

    Args:
        when: what it says.
        now_ms: tells the broker's time, ms since the epoch; it is asked only where it counts.
    """
    return max(0, now_ms() - when.ms) if isinstance(when, Ago) else when


class Instant(click.ParamType):
    """An option's instant: ISO 8601 (UTC unless it says otherwise), ms since the epoch, or `2h`: so long ago."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Read it; the result is in ms since the epoch, or says how long ago."""
        if isinstance(value, int | Ago):
            return value
        text = str(value).strip()
        with contextlib.suppress(ValueError):
            return instant_ms(text)
        try:
            return Ago(duration_ms(text))
        except ValueError:
            self.fail(f'{text!r}: expected "2026-01-31T12:00:00", ms since the epoch, or "2h" for two hours ago')


INSTANT = Instant()
