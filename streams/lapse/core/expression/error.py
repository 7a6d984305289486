"""The one error of the expression language: where it is, what is wrong, and what to do (X1)."""

from __future__ import annotations

from typing import Final

_WINDOW: Final = 100
"""Widest part of a line that the snippet shows."""


class ExpressionError(ValueError):
    """An expression that cannot be used.

    Attributes:
        text: the whole expression.
        line: line of the fault, from 1.
        column: column of the fault in that line, from 1.
        message: what is wrong, in one sentence.
        hint: what to do about it, or an empty string.
        snippet: the line of the fault with a caret below the spot.
    """

    def __init__(self, message: str, text: str, position: int = 0, *, length: int = 1, hint: str = "") -> None:
        """Describe a fault.

        Args:
            message: what is wrong, in one sentence.
            text: the whole expression.
            position: index of the faulty character in the text; the length of the text means its end.
            length: how many characters the fault covers.
            hint: what to do about it.
        """
        position = max(0, min(position, len(text)))
        start = text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        self.text = text
        self.line = text.count("\n", 0, position) + 1
        self.column = position - start + 1
        self.message = message
        self.hint = hint
        self.snippet = _snippet(text[start : end if end >= 0 else len(text)], self.column, length)
        super().__init__(self.render())

    def render(self) -> str:
        """The error as text for people, on three or four lines."""
        lines = [f"expression, line {self.line}, column {self.column}: {self.message}", self.snippet]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def _snippet(line: str, column: int, length: int) -> str:
    """The faulty line, cut to a window around the spot, and carets below the spot."""
    index = column - 1
    first = max(0, index - _WINDOW // 2) if len(line) > _WINDOW else 0
    shown = line[first : first + _WINDOW]
    before = "…" if first else ""
    after = "…" if first + _WINDOW < len(line) else ""
    visible = "".join(character if character.isprintable() else " " for character in shown)
    offset = len(before) + index - first
    carets = "^" * max(1, min(length, len(shown) - (index - first)))
    return f"  {before}{visible}{after}\n  {' ' * offset}{carets}"
