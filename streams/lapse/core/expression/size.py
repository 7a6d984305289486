"""Size: checks an expression against the limits (X1)."""

from __future__ import annotations

from typing import Final

from lapse.core.expression import limits
from lapse.core.expression.error import ExpressionError
from lapse.core.expression.syntax import Affix, Arithmetic, Call, Case, In, Like, Node, walk

SCANNING: Final = frozenset(
    (
        *("UPPER", "LOWER", "SUBSTR", "LEFT", "RIGHT", "CONCAT", "REPLACE", "TRIM", "LTRIM", "RTRIM", "INSTR"),
        *("INSTR_I", "STREQUAL_I", "TEXT", "ARRAY_CONTAINS"),
    )
)
"""Functions whose work grows with the length of a text or array."""


def check_size(root: Node, text: str) -> None:
    """Check that an expression is within the limits.

    Raises:
        ExpressionError: it exceeds a limit.
    """
    products = scans = 0
    for count, (node, depth) in enumerate(walk(root), 1):
        products += isinstance(node, Arithmetic) and node.operator == "*"
        scans += isinstance(node, Like) or (isinstance(node, Call) and node.name in SCANNING)
        excess = _excess(node, depth, count)
        if products > limits.MAX_PRODUCTS:
            excess = f"more than {limits.MAX_PRODUCTS} multiplications"
        elif scans > limits.MAX_SCANS:
            excess = f"more than {limits.MAX_SCANS} patterns of LIKE and functions on strings and arrays"
        if excess:
            raise ExpressionError(f"this expression is too large: {excess}", text, hint="split it or simplify it")


def _excess(node: Node, depth: int, count: int) -> str:
    """Return a text that says which limit is exceeded; empty if none is."""
    if depth > limits.MAX_HEIGHT:
        return f"nested more than {limits.MAX_HEIGHT} levels deep"
    if count > limits.MAX_NODES:
        return f"more than {limits.MAX_NODES} literals, paths and operators"
    match node:
        case In(_, entries) | Affix(_, entries) if len(entries) > limits.MAX_ITEMS:
            return f"a list of more than {limits.MAX_ITEMS} entries"
        case Case(branches) if len(branches) > limits.MAX_BRANCHES:
            return f"more than {limits.MAX_BRANCHES} WHEN branches"
        case _:
            return ""
