"""Walks the statements of a syntax tree, which are a tenth of its nodes."""

import ast
from collections.abc import Iterator

_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it, without what is in their expressions: these define and import nothing."""
    yield node
    for block in _BLOCKS:
        for inner in getattr(node, block, ()):
            yield from statements(inner)
