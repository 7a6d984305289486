"""How a `LIKE` pattern is tried on a text: by Python's `re` as far as that is quick, else by RE2 in linear time (X1).

Python's `re` tries one way after the other, and can need many steps. The number is bounded by the pattern's shape and
the text's length. Where the bound is too high, RE2 (the package google-re2) searches instead. The client is installed
without it: such a pattern is refused there. A pattern that RE2 cannot express is tried on shorter texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lapse.core.expression.limits import MAX_STEPS, MAX_SUBJECT
from lapse.core.expression.repetition import Shape
from lapse.core.expression.translation import atoms_of, parse_tree, to_re2

try:
    import re2
except ImportError:  # a client-only install
    re2 = None

Search = Callable[[str], object]

_QUICK_STEPS: Final = 10_000
"""On texts on which `re` needs no more steps, it is faster than RE2."""

_MOST_PROGRAM: Final = 20_000
"""Instructions of the program that RE2 makes of a pattern: a larger one takes too long for each character."""


class Matcher(NamedTuple):
    """How a pattern is tried.

    Attributes:
        search: returns None for a text that does not match; None = RE2 is needed and not installed.
        longest: the longest text that the pattern is tried on.
    """

    search: Search | None
    longest: int


def matcher_of(text: str, compiled: re.Pattern[str], shape: Shape) -> Matcher:
    """Choose how a pattern is tried that `re` and `repetition` have accepted."""
    tree = parse_tree(text)
    cost = shape.choices * atoms_of(tree)
    longest = MAX_SUBJECT[max(0, shape.degree - 1)]
    within = _longest_within(MAX_STEPS, cost, shape.degree)
    if within >= longest:
        return Matcher(compiled.search, longest)
    translated = to_re2(tree)
    if translated is None:
        return Matcher(compiled.search, within)
    if re2 is None:
        return Matcher(None, longest)
    linear = linear_search(translated)
    if linear is None:
        return Matcher(compiled.search, within)
    return Matcher(_both(compiled.search, linear, _longest_within(_QUICK_STEPS, cost, shape.degree)), longest)


def _longest_within(steps: int, cost: int, degree: int) -> int:
    """The longest text on which at most so many steps are needed."""
    if degree == 0:
        return steps if cost <= steps else 0
    longest: int = int((steps / cost) ** (1 / degree))
    # A root is not exact: perhaps one more fits.
    return longest + int(cost * (longest + 1) ** degree <= steps)


def linear_search(translated: str) -> Search | None:
    """RE2's search for a pattern in its own syntax; None if the pattern takes too large a program.

    Args:
        translated: what `to_re2` made of the pattern.
    """
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    try:
        compiled: Any = re2.compile(translated, options)
    except re2.error:
        return None
    if compiled.programsize > _MOST_PROGRAM:
        return None
    search = compiled.search
    # A surrogate stands in no text that was ever UTF-8.
    return lambda text: search(text.encode("utf-8", "replace"))


def _both(quick: Search, linear: Search, longest_quick: int) -> Search:
    """Search short texts one way and long ones the other."""

    def search(text: str) -> object:
        return quick(text) if len(text) <= longest_quick else linear(text)

    return search
