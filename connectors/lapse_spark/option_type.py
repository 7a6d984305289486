"""Types of options of the pipeline's commands: durations, intervals as Spark has them, and its masters."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from lapse.option_type import Instant, Number, Read


class Duration(click.ParamType):
    """A duration on the command line, as ms."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse `500ms`, `45s` or `1.5h`. A plain number is ms."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", str(value), re.ASCII)
        if match is None:
            self.fail(f"{value!r}: expected 500ms, 45s, 10m, 1.5h or 2d", param, ctx)
        found_ms = float(match[1]) * _UNITS_MS[match[2] or "ms"]
        if found_ms > _LONGEST_MS:
            self.fail(f"{value!r}: longer than a hundred years", param, ctx)
        return round(found_ms)


class Interval(Duration):
    """An interval on the command line, as Spark's text: written as a duration (`30s`), or as Spark has it.

    Args:
        least_ms: the shortest one, ms.
    """

    name = "interval"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse `30s`, `30 seconds` or `1 hour 30 minutes`."""
        text = re.sub(r"\s+", " ", str(value)).strip().lower().removeprefix("interval ")
        if _OF_SPARK.fullmatch(text):
            found_ms = round(sum(float(number) * _SPARK_MS[unit] for number, unit in _PART_OF_SPARK.findall(text)))
        else:
            found_ms = super().convert(text, param, ctx)
        if not self._least_ms <= found_ms <= _LONGEST_MS:
            self.fail(f"{value!r}: expected {self._least_ms} ms to a hundred years", param, ctx)
        return f"{found_ms} milliseconds"


_SPARK_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_PART_OF_SPARK: Final = re.compile(rf"(\d+(?:\.\d+)?) ({'|'.join(_SPARK_MS)})s?", re.ASCII)
_OF_SPARK: Final = re.compile(rf"{_PART_OF_SPARK.pattern}(?: {_PART_OF_SPARK.pattern})*", re.ASCII)

_LONGEST_MS: Final = 36_525 * 86_400_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_MASTER: Final = re.compile(
    r"local(?:\[(?:\*|\d+)(?:\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|[a-z][a-z0-9+.-]*://\S+",
    re.ASCII,
)


def _master(text: str) -> str:
    """Check the form of Spark's master, because Spark reads it only after its start, which takes seconds.

    Raises:
        ValueError: Spark has no master of this form.
    """
    if _MASTER.fullmatch(text) is None:
        raise ValueError(f"{text!r}: expected local[*], local[4], spark://HOST:PORT, k8s://HOST:PORT or yarn")
    return text


INSTANT = Instant()
DURATION = Duration()
INTERVAL = Interval()
WINDOW = Interval(least_ms=1)
MASTER = Read("master", _master)
HOURS = Number(0, 1_000_000)
"""Hours, few enough that an instant so far from now has a date."""
