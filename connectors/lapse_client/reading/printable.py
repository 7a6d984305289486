"""Makes foreign text safe for a terminal: control characters are escaped (X7)."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with control characters escaped, except line ends and tabs.

    Keys, payloads and headers come from foreign producers, and could otherwise control the terminal.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
