"""Topic patterns, which select a queue's underlying topics by name (Q2, C28)."""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = re.compile(r"\(\?[aiLmsux]+\)")
"""Matches flags of a whole regular expression, which must be at its start."""

_UNLESS_WRITTEN_OUT: Final = (
    (r"(?!dlq\.)", re.compile(r"(?<![\w-])dlq(?:\\?\.|\[\.\])")),
    (r"(?!.*(?:-changelog|-__assignor-__leader)\Z)", re.compile("changelog|__leader")),
)
"""Names that a pattern does not match, and the text that it must contain to match them."""


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for the full names of topics that a `topic_pattern` selects.

    It never matches topics of lapse. It matches dead-letter topics, and changelogs of stream processors, only if the
    pattern names them explicitly.

    Raises:
        re.error: the pattern is not a regular expression.
    """
    never = r"(?!lapse\.|__)"
    for what, written_out in _UNLESS_WRITTEN_OUT:
        if written_out.search(pattern) is None:
            never += what
    flags = _FLAGS.match(pattern)
    begin = flags.end() if flags else 0
    return re.compile(f"{pattern[:begin]}{never}(?:{pattern[begin:]})")
