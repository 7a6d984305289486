"""Fields of the configuration that are durations, such as `"45s"`, `"500ms"`, `"5m"`, `"2h"` and `"1d"`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from lapse.core.duration import duration_ms, period_ms

DurationMs = Annotated[int, BeforeValidator(duration_ms)]
"""A field that is written as a duration, and has a value in ms."""

PeriodMs = Annotated[int, BeforeValidator(period_ms)]
"""The same, without 0."""
