"""Topic patterns: which topics belong to a queue by their names (Q2, C28)."""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = re.compile(r"\(\?[aiLmsux]+\)")
"""Flags of a whole regular expression, which have to stand at its beginning."""

_UNLESS_WRITTEN_OUT: Final = (
    (r"(?!dlq\.)", re.compile(r"(?<![\w-])dlq(?:\\?\.|\[\.\])")),
    (r"(?!.*(?:-changelog|-__assignor-__leader)\Z)", re.compile("changelog|__leader")),
)
"""Names that a pattern does not match, and what has to stand in it so that it does."""


def compiled(pattern: str) -> re.Pattern[str]:
    """What the whole names of topics look like that a `topic_pattern` means; never ours.

    Dead letters, and changelogs of stream processors such as our workers, only where the pattern writes them out.

    Raises:
        re.error: it is no regular expression.
    """
    never = r"(?!lapse\.|__)"
    for what, written_out in _UNLESS_WRITTEN_OUT:
        if written_out.search(pattern) is None:
            never += what
    flags = _FLAGS.match(pattern)
    begin = flags.end() if flags else 0
    return re.compile(f"{pattern[:begin]}{never}(?:{pattern[begin:]})")
