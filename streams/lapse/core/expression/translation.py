"""Translation: turns patterns of Python's `re` into RE2's syntax with the same meaning (X1).

Only whether a pattern matches anywhere counts, so greedy and lazy repeats are the same, and groups capture nothing.
Every class of characters is written as ranges of code points computed with Python's `re`, because the two engines have
different tables of letters, digits, white space and upper case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

_LAST: Final = 0x10FFFF
_MOST_COUNTED: Final = 1_000
"""The greatest number of repeats that RE2 accepts."""

_CASED_BELOW: Final = 0x1F000
"""All characters with an upper and a lower case are below this code point."""

_NAMED_BELOW: Final = 0x40000
"""All letters, digits and white space are below this code point. Examining all 1.1 million is five times slower."""

Ranges = list[tuple[int, int]]


class _Untranslatable(Exception):
    """RE2 has no equivalent."""


def parse_tree(pattern: str) -> Any:
    """Return the tree of (operation, argument) pairs that Python's `re` makes of an accepted pattern."""
    return import_module("re._parser").parse(pattern)


def atoms_of(tree: Iterable[tuple[Any, Any]]) -> int:
    """Return the number of atoms of a pattern, with the least count of each repeat multiplied out."""
    count = 0
    for operation, argument in tree:
        match str(operation):
            case "BRANCH":
                count += sum(atoms_of(one) for one in argument[1])
            case "SUBPATTERN":
                count += atoms_of(argument[3])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                count += max(1, int(argument[0])) * atoms_of(argument[2])
            case "ATOMIC_GROUP":
                count += atoms_of(argument)
            case "ASSERT" | "ASSERT_NOT":
                count += atoms_of(argument[1])
            case _:
                count += 1
    return max(1, count)


def to_re2(tree: Any) -> str | None:
    r"""Return a pattern in RE2's syntax; None if RE2 has no equivalent.

    RE2 has no look-around, no back-references and no atomic groups. Its `\b` is limited to ASCII. Its `$` does not
    match before a final line feed, so `$` is translated only where nothing can follow.
    """
    try:
        return _sequence(tree, bool(tree.state.flags & re.IGNORECASE), bool(tree.state.flags & re.DOTALL), last=True)
    except _Untranslatable:
        return None


def _sequence(tree: Sequence[tuple[Any, Any]], ignore_case: bool, dot_all: bool, *, last: bool) -> str:
    end = len(tree) - 1
    return "".join(
        _atom(str(operation), argument, ignore_case, dot_all, last=last and at == end)
        for at, (operation, argument) in enumerate(tree)
    )


def _atom(operation: str, argument: Any, ignore_case: bool, dot_all: bool, *, last: bool) -> str:
    match operation:
        case "LITERAL":
            return _characters([(argument, argument)], ignore_case)
        case "NOT_LITERAL":
            return _characters([(argument, argument)], ignore_case, negated=True)
        case "ANY":
            return r"[\x{0}-\x{10FFFF}]" if dot_all else r"[^\x{A}]"
        case "IN":
            negated = str(argument[0][0]) == "NEGATE"
            return _characters([pair for item in argument[negated:] for pair in _listed(*item)], ignore_case, negated)
        case "AT":
            return _position(str(argument), last)
        case "BRANCH":
            branches = (_sequence(one, ignore_case, dot_all, last=last) for one in argument[1])
            return f"(?:{'|'.join(branches)})"
        case "SUBPATTERN":
            _, added, removed, inner = argument
            ignore_case = bool((re.IGNORECASE if ignore_case else 0) & ~removed | added & re.IGNORECASE)
            dot_all = bool((re.DOTALL if dot_all else 0) & ~removed | added & re.DOTALL)
            return f"(?:{_sequence(inner, ignore_case, dot_all, last=last)})"
        case "MAX_REPEAT" | "MIN_REPEAT":
            low, high, inner = argument
            return _repeat(low, high, inner, ignore_case, dot_all)
        case _:
            raise _Untranslatable


def _position(where: str, last: bool) -> str:
    match where:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return r"\A"
        case "AT_END" if last:
            return r"(?:\x{A}?\z)"
        case "AT_END_STRING":
            return r"\z"
        case _:
            raise _Untranslatable


def _repeat(low: int, high: Any, inner: Any, ignore_case: bool, dot_all: bool) -> str:
    unbounded = str(high) == "MAXREPEAT"
    if low > _MOST_COUNTED or (not unbounded and high > _MOST_COUNTED):
        raise _Untranslatable
    count = f"{low}," if unbounded else f"{low},{int(high)}"
    return f"(?:{_sequence(inner, ignore_case, dot_all, last=False)}){{{count}}}"


def _listed(kind: Any, argument: Any) -> Ranges:
    """Return the code points of an entry of a character class."""
    match str(kind):
        case "LITERAL":
            return [(argument, argument)]
        case "RANGE":
            return [argument]
        case "CATEGORY":
            name = str(argument).removeprefix("CATEGORY_").removeprefix("UNI_")
            found = _category(name.removeprefix("NOT_").lower()[0])
            return _complement(found) if name.startswith("NOT_") else found
        case _:
            raise _Untranslatable


@cache
def _category(letter: str) -> Ranges:
    r"""Return the code points of `\d`, `\s` or `\w`."""
    characters = "".join(map(chr, range(_NAMED_BELOW)))
    return [(found.start(), found.end() - 1) for found in re.finditer(rf"\{letter}+", characters)]


@cache
def _cased() -> str:
    """Return all characters that have another case."""
    return "".join(one for one in map(chr, range(_CASED_BELOW)) if one.lower() != one or one.upper() != one)


def _characters(ranges: Ranges, ignore_case: bool, negated: bool = False) -> str:
    """Return a class of characters in RE2's syntax."""
    if ignore_case and ranges:
        listed = "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges)
        ranges = ranges + [(ord(one), ord(one)) for one in re.findall(f"(?i)[{listed}]", _cased())]
    merged = _merged(ranges)
    if negated:
        merged = _complement(merged)
    if not merged:
        return r"[^\x{0}-\x{10FFFF}]"
    return "[" + "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in merged) + "]"


def _merged(ranges: Ranges) -> Ranges:
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _complement(ranges: Ranges) -> Ranges:
    """Return all code points outside ascending ranges."""
    firsts = [0, *(high + 1 for _, high in ranges)]
    lasts = [*(low - 1 for low, _ in ranges), _LAST]
    return [(low, high) for low, high in zip(firsts, lasts, strict=True) if low <= high]
