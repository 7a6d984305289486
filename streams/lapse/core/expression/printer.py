"""Printer: turns a syntax tree into text that parses to the same tree (X1)."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.expression.message import Scalar
from lapse.core.expression.syntax import (
    Affix,
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Case,
    Comparison,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Path,
)

_PLAIN: Final = re.compile(r"\w+")


def quoted(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("'", "''") + "'"


def path_text(path: Path) -> str:
    """Return the canonical text of a path, such as `/a/b[0]/'strange name'`."""
    parts = []
    for step in path.steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append("/" + (step if _PLAIN.fullmatch(step) else quoted(step)))
    return "".join(parts)


def literal_text(value: Scalar) -> str:
    """Return the text of a constant."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return quoted(value)
    return "NAN" if value != value else repr(value)


def to_text(node: Node) -> str:  # noqa: C901 - one case per node
    """Return an expression as text. Operands that are not simple are put in parentheses."""
    match node:
        case Literal(value):
            return literal_text(value)
        case Path():
            return path_text(node)
        case Attribute(name, argument):
            return f"{name}({'' if argument is None else quoted(argument)})"
        case Negative(operand):
            return f"-{_operand(operand)}"
        case Arithmetic(operator, left, right) | Comparison(operator, left, right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case Not(operand):
            return f"NOT {_operand(operand)}"
        case And(operands):
            return " AND ".join(map(_operand, operands))
        case Or(operands):
            return " OR ".join(map(_operand, operands))
        case In(operand, items):
            return f"{_operand(operand)} IN ({', '.join(map(to_text, items))})"
        case Between(operand, low, high):
            return f"{_operand(operand)} BETWEEN {_operand(low)} AND {_operand(high)}"
        case Like(operand, pattern):
            return f"{_operand(operand)} LIKE {quoted(pattern)}"
        case Affix(operand, affixes, at_end):
            side = "ENDS" if at_end else "BEGINS"
            return f"{_operand(operand)} {side} WITH ({', '.join(map(quoted, affixes))})"
        case IsNull(operand):
            return f"{_operand(operand)} IS NULL"
        case IsNan(operand):
            return f"{_operand(operand)} IS NAN"
        case Call(name, arguments):
            return f"{name}({', '.join(map(to_text, arguments))})"
        case Case(branches, default):
            parts = [f"WHEN {to_text(condition)} THEN {to_text(value)}" for condition, value in branches]
            return f"CASE {' '.join(parts)} ELSE {to_text(default)} END"


def _operand(node: Node) -> str:
    text = to_text(node)
    simple = isinstance(node, Path | Attribute | Call | Case) or (isinstance(node, Literal) and text[0] != "-")
    return text if simple else f"({text})"
