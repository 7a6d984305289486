"""Field paths: paths in `key`, `hash_index` and select lists, written as in expressions (S1, S11)."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.expression.printer import path_text
from lapse.core.expression.syntax import Path

Steps = tuple[str | int, ...]
"""Names of members and indexes of array elements."""

_STEP: Final = re.compile(
    r"""/'((?:[^']|'')+)'      # a quoted name, the quote doubled inside
    | /"((?:[^"]|"")+)"
    | /([^/'"\[\]\s]+)         # any other name; here '-' and '.' need no quotes
    | \[([0-9]{1,9})\]         # an element of an array
    """,
    re.VERBOSE,
)


def parse(text: str) -> Steps:
    """Split a path like `/order/legs[0]/'order id'` into its steps.

    Raises:
        ValueError: the text is not a path; the message says from which character on.
    """
    steps: list[str | int] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None or (match[4] is not None and not steps):
            raise ValueError(
                f"{text!r} is no path to a field from character {end + 1} on; write it like /order/symbol, "
                "/legs[0]/price or /'order id'"
            )
        single, double, plain, index = match.groups()
        if index is not None:
            steps.append(int(index))
        elif plain is not None:
            steps.append(plain)
        else:
            steps.append(double.replace('""', '"') if single is None else single.replace("''", "'"))
        end = match.end()
    if not steps:
        raise ValueError("an empty text is no path to a field; write it like /order/symbol")
    return tuple(steps)


def format_path(steps: Steps) -> str:
    """Return a path as expressions write it, which is the same for all spellings."""
    return path_text(Path(steps))


def value_at(payload: object, steps: Steps) -> object:
    """Return the value at a path; None if there is none."""
    value = payload
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value
