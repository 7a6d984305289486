"""A type of options whose values a function parses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


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
