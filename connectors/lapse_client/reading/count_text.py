"""Writes counts with their nouns, as people write them: `1 letter`, `2,000 letters`."""

from __future__ import annotations


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, which gets an `s` unless the count is one.

    Args:
        count: the count.
        noun: the noun in the singular, such as `letter`.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
