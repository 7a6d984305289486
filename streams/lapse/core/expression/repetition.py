"""Repetition: bounds the time of a regular expression (X1, X7).

Patterns that could take exponential time are refused. Polynomial time limits the length of the subject.

A repeat of a group that itself varies (`(a+)+`, `(a|b)*`) is exponential in the subject. Optional parts and
alternatives multiply. The number of unbounded repeats and back-references is the degree of the polynomial. A repeat of
an atom that can be empty (`(){1000000}`) takes as many steps as its count, on a text of any length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from lapse.core.expression.limits import MAX_CHOICES, MAX_REPEATS

_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(?=[0-9,])([0-9]*)(,?)([0-9]*)\})[?+]?")
_CLASS: Final = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_POSITION: Final = re.compile(r"\\[bBAZ]")
_REFERENCE: Final = re.compile(r"\(\?P=\w+\)|\\[1-9]")
_COMMENT: Final = re.compile(r"\(\?#[^)]*\)")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]+)\)")
_OPENING: Final = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|P<\w+>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?):))?")
_LOOKS: Final = ("=", "!", "<")
_MANY: Final = 16
"""A bounded repeat whose limits differ by more than this counts as unbounded."""


class PatternFault(Exception):
    """A pattern is not accepted. The position is an index in the pattern."""

    def __init__(self, message: str, position: int, hint: str) -> None:
        """Describe the fault."""
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint


class Shape(NamedTuple):
    """The bounds of the number of steps that a pattern can take.

    Attributes:
        choices: the product of its alternatives and optional parts.
        degree: the degree of the polynomial in the length of the text.
    """

    choices: int
    degree: int


@dataclass(slots=True)
class _Group:
    """The properties, found so far, of a group."""

    alternatives: int = 1
    contains_variation: bool = False
    looks_around: bool = False
    width: int = 0
    """The least number of characters that the current alternative matches."""
    least: int | None = None
    """The least number of characters that an earlier alternative matches; None without any."""

    def next_alternative(self) -> None:
        """Begin another alternative."""
        self.alternatives += 1
        self.least, self.width = self.least_width, 0

    @property
    def least_width(self) -> int:
        """The least number of characters that the group matches."""
        return self.width if self.least is None else min(self.least, self.width)

    @property
    def varies(self) -> bool:
        """Whether the group can match one text in several ways, or texts of several lengths."""
        return self.contains_variation or self.alternatives > 1


def shape_of(pattern: str) -> Shape:
    """Return the shape of a valid pattern.

    Raises:
        PatternFault: the pattern could take too long.
    """
    scan = _Scan(pattern)
    scan.run()
    choices = scan.choices * scan.groups[0].alternatives
    if choices > MAX_CHOICES:
        raise PatternFault("this pattern has too many optional parts and alternatives", 0, "split it, or use IN")
    anchored = pattern.startswith(("^", r"\A")) and scan.groups[0].alternatives == 1
    return Shape(choices, scan.repeats + 1 - anchored)


class _Scan:
    """A pass over a pattern that Python's `re` has accepted."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.index = 0
        self.groups = [_Group()]
        self.repeats = 0
        self.choices = 1

    def run(self) -> None:
        """Examine every atom, and how it is repeated."""
        while self.index < len(self.pattern):
            match self.pattern[self.index]:
                case "(" | "\\" if self.skip_if(_REFERENCE):
                    self.repeated()
                    self.quantifier(varies=True, width=0)
                case "(":
                    self.opening()
                case "|":
                    self.groups[-1].next_alternative()
                    self.index += 1
                case ")":
                    self.index += 1
                    closed = self.groups.pop()
                    self.choices *= closed.alternatives
                    self.groups[-1].contains_variation |= closed.varies
                    self.quantifier(varies=closed.varies, width=0 if closed.looks_around else closed.least_width)
                case "^" | "$":
                    self.index += 1
                    self.quantifier(varies=False, width=0)
                case "\\" if self.skip_if(_POSITION):
                    self.quantifier(varies=False, width=0)
                case _:
                    if not self.skip_if(_CLASS) and not self.skip_if(_ESCAPE):
                        self.index += 1
                    self.quantifier(varies=False, width=1)

    def skip_if(self, what: re.Pattern[str]) -> bool:
        """Return whether an element is at the current index, and skip it if so."""
        match = what.match(self.pattern, self.index)
        if match is not None:
            self.index = match.end()
        return match is not None

    def opening(self) -> None:
        """Examine the start of a group, a comment, or flags."""
        if self.skip_if(_COMMENT):
            return
        start = self.index
        if flags := _FLAGS.match(self.pattern, start):
            _check_flags(flags[1], start)
            self.index = flags.end()
            return
        match = _OPENING.match(self.pattern, start)
        assert match is not None
        self.index = match.end()
        if self.pattern.startswith("?", self.index) and match[0] == "(":
            raise PatternFault("this kind of group is not supported", start, "use (…), (?:…), (?=…) or (?i)")
        _check_flags(match["flags"] or "", start)
        self.groups.append(_Group(looks_around=match[0][2:3] in _LOOKS))

    def quantifier(self, *, varies: bool, width: int) -> None:
        """Examine the quantifier, if any, that follows an atom.

        Args:
            varies: whether the atom is a group that varies.
            width: the least number of characters that the atom matches.
        """
        match = _QUANTIFIER.match(self.pattern, self.index)
        if match is None:
            self.groups[-1].width += width
            return
        low, high = _range(match)
        self.groups[-1].width += min(1, low * width)
        if varies and (high is None or high > 1):
            raise PatternFault(
                "this repeats a group that itself varies, which can take forever",
                self.index,
                "repeat a single character or class instead, such as [ab]* for (a|b)*, or drop one repeat",
            )
        if not width and (high is None or high > 1):
            raise PatternFault(
                "this repeats something that can be empty, which can take forever",
                self.index,
                "drop the repeat: what matches nothing once matches nothing many times",
            )
        if high is None or high - low > _MANY:
            self.repeated()
        else:
            self.choices *= high - low + 1
        self.groups[-1].contains_variation |= low != high
        self.index = match.end()

    def repeated(self) -> None:
        """Count an unbounded repeat, or a back-reference, which costs as much."""
        self.repeats += 1
        if self.repeats > MAX_REPEATS:
            fault = f"more than {MAX_REPEATS} unbounded repeats and back-references"
            raise PatternFault(fault, self.index, "split it into several LIKE joined by AND")


def _check_flags(flags: str, position: int) -> None:
    if set(flags) - set("is-"):
        raise PatternFault("only the flags i and s are supported", position, "write (?i) to ignore case")


def _range(quantifier: re.Match[str]) -> tuple[int, int | None]:
    """Return the least and the greatest number of repeats; None = unbounded."""
    simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier[0][0])
    if simple is not None:
        return simple
    low = int(quantifier[1] or 0)
    if not quantifier[2]:
        return low, low
    return low, int(quantifier[3]) if quantifier[3] else None
