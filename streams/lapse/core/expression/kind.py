"""Kinds: which kinds of value an expression can have, judged by its form (X1)."""

from __future__ import annotations

from enum import IntFlag

from lapse.core.expression.functions import FUNCTIONS
from lapse.core.expression.syntax import Arithmetic, Attribute, Call, Case, IsNan, IsNull, Literal, Negative, Node, Path


class Kind(IntFlag):
    """A set of kinds of value."""

    NULL = 1
    BOOLEAN = 2
    NUMBER = 4
    STRING = 8
    OPAQUE = 16
    ANY = 31


LOGICAL = Kind.NULL | Kind.BOOLEAN
"""The kinds of logical operators and predicates."""

NUMERIC = Kind.NULL | Kind.BOOLEAN | Kind.NUMBER
"""The kinds that compare as numbers, and NULL."""

_RESULTS = {"boolean": Kind.BOOLEAN, "number": Kind.NUMBER, "string": Kind.STRING, "any": Kind.ANY}


def kind_of(node: Node) -> Kind:
    """Return the kinds of value that an expression may have."""
    match node:
        case Literal(value):
            if value is None:
                return Kind.NULL
            if isinstance(value, bool):
                return Kind.BOOLEAN
            return Kind.STRING if isinstance(value, str) else Kind.NUMBER
        case Path():
            return Kind.ANY
        case Attribute(name):
            return Kind.NULL | (Kind.STRING if name in ("HEADER", "KEY", "TOPIC") else Kind.NUMBER)
        case Arithmetic() | Negative():
            return Kind.NULL | Kind.NUMBER
        case Call(name):
            return Kind.NULL | _RESULTS[FUNCTIONS[name].result]
        case Case(branches, default):
            kinds = kind_of(default)
            for _, result in branches:
                kinds |= kind_of(result)
            return kinds
        case IsNull() | IsNan():
            return Kind.BOOLEAN
        case _:
            return LOGICAL
