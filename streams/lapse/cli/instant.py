"""Options with instants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from lapse.core.duration import duration_ms
from lapse.option_type import Instant


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


class InstantOrAgo(Instant):
    """An option with an instant, or a time before now such as `2h`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Parse the value into ms since the epoch, or a time before now."""
        found: When = value if isinstance(value, TimeAgo) else super().convert(value, param, ctx)
        return found

    def fallback(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Parse a time before now."""
        try:
            return TimeAgo(duration_ms(text))
        except ValueError:
            self.fail(f'{text!r}: expected "2026-01-31T12:00:00", ms since the epoch, or "2h" for two hours ago')


INSTANT = InstantOrAgo()
