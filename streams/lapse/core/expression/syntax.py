"""Syntax tree of an expression, made of immutable, hashable nodes without positions (X1).

`NOT IN`, `NOT LIKE`, `IS NOT NULL` and the like are a `Not` around the plain node, and `IF(c, a, b)` is a `Case`. So
each meaning has one form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from lapse.core.expression.message import Scalar

NAN: Final = math.nan
"""The only NaN object in trees, so that equal trees compare equal."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Path:
    """A path in the payload: member names and array indexes."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the message outside its payload. Only `HEADER` has an argument."""

    name: str
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class Negative:
    """Unary minus."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+ - * / %`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Comparison:
    """`= != < <= > >=`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    """Three-valued negation."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """Three-valued conjunction of any number of operands."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Three-valued disjunction of any number of operands."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class In:
    """`operand IN (items)`."""

    operand: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """`operand BETWEEN low AND high`, both ends included."""

    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE 'regular expression'`."""

    operand: Node
    pattern: str


@dataclass(frozen=True, slots=True)
class Affix:
    """`operand BEGINS WITH (…)`, or `ENDS WITH` if `at_end`."""

    operand: Node
    affixes: tuple[str, ...]
    at_end: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`, which is never NULL itself."""

    operand: Node


@dataclass(frozen=True, slots=True)
class IsNan:
    """`operand IS NAN`, which is never NULL itself."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the library, by its canonical name."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN value … ELSE default END`."""

    branches: tuple[tuple[Node, Node], ...]
    default: Node


Node: TypeAlias = (
    Literal
    | Path
    | Attribute
    | Negative
    | Arithmetic
    | Comparison
    | Not
    | And
    | Or
    | In
    | Between
    | Like
    | Affix
    | IsNull
    | IsNan
    | Call
    | Case
)
"""A node of any kind."""


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct operands of a node, in reading order."""
    match node:
        case Literal() | Path() | Attribute():
            return ()
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            return (left, right)
        case And(operands) | Or(operands):
            return operands
        case In(operand, items):
            return (operand, *items)
        case Between(operand, low, high):
            return (operand, low, high)
        case Call(_, arguments):
            return arguments
        case Case(branches, default):
            return (*(part for branch in branches for part in branch), default)
        case _:
            return (node.operand,)


def rebuilt(node: Node, parts: tuple[Node, ...]) -> Node:
    """Return a node with other operands, given in the order of `children`."""
    match node:
        case Literal() | Path() | Attribute():
            return node
        case Arithmetic(operator) | Comparison(operator):
            return type(node)(operator, parts[0], parts[1])
        case And() | Or():
            return type(node)(parts)
        case In():
            return In(parts[0], parts[1:])
        case Between():
            return Between(*parts)
        case Call(name):
            return Call(name, parts)
        case Case():
            return Case(tuple(zip(parts[:-1:2], parts[1:-1:2], strict=True)), parts[-1])
        case _:
            return replace(node, operand=parts[0])


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield a node and all nodes below it, each with its depth (1 at the top), without recursion."""
    stack = [(node, 1)]
    while stack:
        current, depth = stack.pop()
        yield current, depth
        stack.extend((child, depth + 1) for child in reversed(children(current)))
