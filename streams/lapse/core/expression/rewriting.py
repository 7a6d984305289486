"""Rewriting: simplifies expressions by folding constants, flattening chains and ordering conditions by cost (X1).

Evaluation has no side effects and never raises, so `AND` and `OR` may be evaluated in any order.
"""

from __future__ import annotations

from typing import Final

from lapse.core.expression.kind import LOGICAL, kind_of
from lapse.core.expression.operations import SCALARS
from lapse.core.expression.oracle import evaluate
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.syntax import (
    And,
    Attribute,
    Between,
    Call,
    Comparison,
    In,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Path,
    children,
    rebuilt,
)

_REGEX_COST: Final = 16
_CALL_COST: Final = 4


def simplified(node: Node) -> Node:
    """Return an equivalent expression that is cheaper to evaluate."""
    if isinstance(node, Literal | Path | Attribute):
        return node
    node = rebuilt(node, tuple(simplified(child) for child in children(node)))
    if all(isinstance(child, Literal) for child in children(node)):
        value = evaluate(node)
        if value is None or type(value) in SCALARS:
            return Literal(value)
    match node:
        case Comparison(_, left, right) if Literal(None) in (left, right):
            return Literal(None)
        case Between(Path() | Attribute() as operand, low, high) if not _literals(low, high):
            return And((Comparison(">=", operand, low), Comparison("<=", operand, high)))
        case Not(Not(operand)) if kind_of(operand) in LOGICAL:
            return operand
        case In(operand, (item,)):
            return Comparison("=", operand, item)
        case In(operand, items) if Literal(None) in items and _literals(*items):
            return Or((In(operand, tuple(item for item in items if item != Literal(None))), Literal(None)))
        case And() | Or():
            return _chain(node)
        case _:
            return node


def _literals(*nodes: Node) -> bool:
    return all(isinstance(node, Literal) for node in nodes)


def _chain(node: And | Or) -> Node:
    """Return a chain without nested chains of its kind and without neutral constants, cheapest operand first."""
    kind = type(node)
    neutral = kind is And
    operands: list[Node] = []
    for operand in node.operands:
        operands.extend(operand.operands if isinstance(operand, kind) else (operand,))
    if any(isinstance(operand, Literal) and operand.value is (not neutral) for operand in operands):
        return Literal(not neutral)
    rest = [operand for operand in operands if not (isinstance(operand, Literal) and operand.value is neutral)]
    if not rest:
        return Literal(neutral)
    if len(rest) == 1 and kind_of(rest[0]) in LOGICAL:
        return rest[0]
    return kind(tuple(sorted(rest, key=_cost)))


def _cost(node: Node) -> int:
    """Return the rough cost of an evaluation, in which only regular expressions and functions count."""
    own = 0
    if isinstance(node, Like):
        own = _REGEX_COST if read_pattern(node.pattern).test == "regex" else 0
    elif isinstance(node, Call):
        own = _CALL_COST
    return own + sum(map(_cost, children(node)))


def equalities_of(node: Node) -> tuple[tuple[Path, Literal], ...]:
    """Return the equalities that a message must satisfy to match: conjuncts `path = literal` of a simplified tree."""
    conjuncts = node.operands if isinstance(node, And) else (node,)
    pairs = []
    for conjunct in conjuncts:
        match conjunct:
            case Comparison("=", Path() as path, Literal() as literal):
                pairs.append((path, literal))
            case Comparison("=", Literal() as literal, Path() as path):
                pairs.append((path, literal))
            case _:
                pass
    return tuple((path, literal) for path, literal in pairs if literal.value == literal.value)  # not NaN
