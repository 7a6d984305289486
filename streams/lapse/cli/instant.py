"""Options with instants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from lapse.core.duration import duration_ms
from lapse_client.reading.instant import instant_ms


@dataclass(frozen=True, slots=True)
class TimeAgo:
    """A time before now, by the broker's clock.

    Attributes:
        ms: length of the time, in ms.
    """

    ms: int


When = int | TimeAgo
"""The value of an option: an instant, ms since the epoch, or a time before now."""


def at_ms(when: When, now_ms: Callable[[], int]) -> int:
    """Return the instant of an option, ms since the epoch; 0 for instants before 1970.

    Args:
        when: value of the option.
        now_ms: returns the broker's time, ms since the epoch; called only if it is needed.
    """
    return max(0, now_ms() - when.ms) if isinstance(when, TimeAgo) else when


class Instant(click.ParamType):
    """An option with an instant: ISO 8601 (UTC by default), ms since the epoch, or a time before now such as `2h`."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Parse the value into ms since the epoch, or a time before now."""
        if isinstance(value, int | TimeAgo):
            return value
        text = str(value).strip()
        with contextlib.suppress(ValueError):
            return instant_ms(text)
        try:
            return TimeAgo(duration_ms(text))
        except ValueError:
            self.fail(f'{text!r}: expected "2026-01-31T12:00:00", ms since the epoch, or "2h" for two hours ago')


INSTANT = Instant()
