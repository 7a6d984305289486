"""Matcher: tries a `LIKE` pattern on a text with Python's `re` if that is fast, else with RE2 in linear time (X1).

Python's `re` backtracks, and can need many steps. The pattern's shape and the text's length bound their number. If the
bound is too high, RE2 (the package google-re2) searches instead. The client is installed without RE2, and refuses such
a pattern. A pattern that RE2 cannot express is tried on shorter texts only.
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
"""Up to this number of steps, `re` is faster than RE2."""

_MOST_PROGRAM: Final = 20_000
"""The greatest number of instructions of RE2's program, since a larger one takes too long for each character."""


class Matcher(NamedTuple):
    """The search for a pattern.

    Attributes:
        search: returns None for a text that does not match; None = RE2 is needed but not installed.
        longest: length of the longest text that the pattern is tried on.
    """

    search: Search | None
    longest: int


def matcher_of(text: str, compiled: re.Pattern[str], shape: Shape) -> Matcher:
    """Return the search for a pattern that `re` and `repetition` have accepted."""
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
    return Matcher(
        _search_by_length(compiled.search, linear, _longest_within(_QUICK_STEPS, cost, shape.degree)), longest
    )


def _longest_within(steps: int, cost: int, degree: int) -> int:
    """Return the length of the longest text on which at most `steps` steps are needed."""
    if degree == 0:
        return steps if cost <= steps else 0
    longest: int = int((steps / cost) ** (1 / degree))
    # A computed root is not exact, so one more may fit.
    return longest + int(cost * (longest + 1) ** degree <= steps)


def linear_search(translated: str) -> Search | None:
    """Return RE2's search for a pattern in its syntax; None if the pattern needs too large a program.

    Args:
        translated: the pattern as `to_re2` returns it.
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
    # Lone surrogates are replaced, because they do not occur in decoded UTF-8.
    return lambda text: search(text.encode("utf-8", "replace"))


def _search_by_length(quick: Search, linear: Search, longest_quick: int) -> Search:
    """Return a search that tries short texts with `quick` and long ones with `linear`."""

    def search(text: str) -> object:
        return quick(text) if len(text) <= longest_quick else linear(text)

    return search
