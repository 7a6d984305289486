"""Text of others on a terminal: what the terminal would act on is written as escapes (X7)."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text in which nothing moves the cursor, changes colours or rings; ends of lines and tabs stay.

    Keys, payloads and headers are words of somebody's producer.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
