"""The error of the expression language: what is wrong, where, and what to do (X1)."""

from __future__ import annotations

from typing import Final

_WINDOW: Final = 100
"""The greatest number of characters of a line in the snippet."""


class ExpressionError(ValueError):
    """An expression is invalid, or cannot be used here.

    Attributes:
        text: the whole expression.
        line: line of the fault, beginning with 1.
        column: column of the fault in that line, beginning with 1.
        message: what is wrong, in one sentence.
        hint: what to do about it; empty without one.
        snippet: the line of the fault, with carets below the fault.
    """

    def __init__(self, message: str, text: str, position: int = 0, *, length: int = 1, hint: str = "") -> None:
        """Describe a fault.

        Args:
            message: what is wrong, in one sentence.
            text: the whole expression.
            position: index of the fault in the text; the length of the text = its end.
            length: number of characters of the fault.
            hint: what to do about it; empty without one.
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
        """Return the error as a text for people, of three or four lines."""
        lines = [f"expression, line {self.line}, column {self.column}: {self.message}", self.snippet]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def _snippet(line: str, column: int, length: int) -> str:
    """Return the faulty line, cut to a window around the fault, with carets below the fault."""
    index = column - 1
    first = max(0, index - _WINDOW // 2) if len(line) > _WINDOW else 0
    shown = line[first : first + _WINDOW]
    before = "…" if first else ""
    after = "…" if first + _WINDOW < len(line) else ""
    visible = "".join(character if character.isprintable() else " " for character in shown)
    offset = len(before) + index - first
    carets = "^" * max(1, min(length, len(shown) - (index - first)))
    return f"  {before}{visible}{after}\n  {' ' * offset}{carets}"
