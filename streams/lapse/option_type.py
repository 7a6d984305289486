"""Types of options: numbers, and values that a function parses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click


class Number(click.FloatRange):
    """An option's type whose values are numbers, perhaps in a range, and neither NaN nor infinite."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value of the command line."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return found


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
