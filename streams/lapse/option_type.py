"""Types of options: numbers, instants, and values that a function parses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from lapse.protocol.instant import instant_ms


class Number(click.FloatRange):
    """An option's type whose values are numbers, perhaps in a range, and neither NaN nor infinite."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value of the command line."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return found


class Instant(click.ParamType):
    """An option's type whose values are instants, as ms since the epoch."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse ISO 8601 (UTC by default), or ms since the epoch."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            return instant_ms(text)
        except ValueError as error:
            if text.isascii() and text.isdigit():
                self.fail(f"{error}; expected 2026-01-31T12:00:00Z, or ms since the epoch", param, ctx)
            return self.fallback(text, param, ctx)

    def fallback(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse what is no instant. A type with further forms overrides this."""
        self.fail(f"{text!r}: expected 2026-01-31T12:00:00Z, or ms since the epoch", param, ctx)


class Read(click.ParamType):
    """An option's type whose values a function parses. The function's ValueError is the error message.

    Args:
        name: the name of the type in help.
        read: parses a value.
    """

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value of the command line."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def check_span(since_ms: int | None, until_ms: int | None) -> None:
    """Check that something can be between `--since` and `--until`, ms since the epoch.

    Raises:
        click.UsageError: nothing can.
    """
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise click.UsageError(f"--until {until_ms} is not after --since {since_ms}: nothing is between them")


def not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse an option that is given without a text, as by a script whose variable is empty. A callback of options.

    Raises:
        click.BadParameter: the option is empty, or one of several.
    """
    given = value if isinstance(value, tuple) else (value,)
    if "" in given and ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT:
        raise click.BadParameter("is empty; leave the option out, or give it a value", ctx, param)
    return value
