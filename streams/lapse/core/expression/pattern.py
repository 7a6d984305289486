"""Patterns: checks the regular expressions of `LIKE`, and reduces them to equivalent plain text tests (X1, X7).

Python's `re` has no time limit. So patterns that could take forever are refused (see `repetition`), and patterns that
could be slow are searched for in linear time (see `matcher`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from lapse.core.expression.limits import MAX_PATTERN, MAX_SUBJECT
from lapse.core.expression.matcher import Search, matcher_of
from lapse.core.expression.repetition import PatternFault, shape_of

_SPECIAL: Final = frozenset(".^$*+?{}[]\\|()")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An accepted pattern, and the cheapest equivalent test.

    Attributes:
        test: `regex`, or the plain text test that replaces it: the subject contains the text, starts or ends with one
            of the texts, or is one of them.
        texts: the texts of a plain test.
        search: returns None for a subject that does not match; None = google-re2 is needed but not installed.
        longest: length of the longest subject that the regular expression is tried on.
    """

    test: Literal["regex", "contains", "prefix", "suffix", "member"]
    texts: tuple[str, ...]
    search: Search | None
    longest: int


@lru_cache(maxsize=4096)
def read_pattern(text: str) -> Pattern:
    """Check a pattern and choose its test.

    Raises:
        PatternFault: the pattern is not accepted.
    """
    if len(text) > MAX_PATTERN:
        raise PatternFault(f"a pattern of more than {MAX_PATTERN} characters", 0, "use IN or BEGINS WITH for lists")
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise PatternFault(f"this is not a regular expression: {error.msg}", error.pos or 0, _ESCAPE_HINT) from None
    except (RecursionError, OverflowError, Warning):
        raise PatternFault("this regular expression is too complex", 0, "write a simpler pattern") from None
    shape = shape_of(text)
    plain = _plain_test(text)
    if plain is None:
        return Pattern("regex", (), *matcher_of(text, compiled, shape))
    return Pattern(plain[0], plain[1], compiled.search, MAX_SUBJECT[0])


_ESCAPE_HINT: Final = r"put a backslash before a special character that is meant literally, such as \. or \("


def _plain_test(text: str) -> tuple[Literal["contains", "prefix", "suffix", "member"], tuple[str, ...]] | None:
    """Return a pattern's equivalent plain test, or None. `$` also matches before a final line feed, as in PCRE."""
    at_start = text.startswith("^")
    at_end = text.endswith("$") and (len(text) - len(text[:-1].rstrip("\\"))) % 2 == 1
    body = text[at_start : len(text) - at_end]
    texts = _alternatives(body)
    if texts is None:
        return None
    with_line_feed = texts + tuple(one + "\n" for one in texts)
    if at_start and at_end:
        return "member", with_line_feed
    if at_start:
        return "prefix", texts
    if at_end:
        return "suffix", with_line_feed
    return ("contains", texts) if len(texts) == 1 else None


def _alternatives(body: str) -> tuple[str, ...] | None:
    """Return the texts that `text` or `(a|b|c)` means; None if it contains special characters."""
    if body.startswith("(") and body.endswith(")"):
        inner = body[3:-1] if body.startswith("(?:") else body[1:-1]
        parts = [_literal_text(part) for part in inner.split("|")]
    else:
        parts = [_literal_text(body)]
    texts = tuple(part for part in parts if part is not None)
    return texts if len(texts) == len(parts) else None


def _literal_text(text: str) -> str | None:
    """Return the text that a pattern means, with escapes resolved; None if it contains special characters."""
    result = []
    index = 0
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
            if index >= len(text) or text[index].isalnum() or not text[index].isascii():
                return None
            character = text[index]
        elif character in _SPECIAL:
            return None
        result.append(character)
        index += 1
    return "".join(result)
