"""Predicates of one operand and constants, which generated functions inline as conditions (X1).

Such a predicate is NULL exactly if its operand is NULL. Otherwise one Python condition decides. The conditions are
fixed templates: `{first}` is the operand where it is evaluated, `{x}` each further use of it, and `{a}` and `{b}` are
constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from lapse.core.expression.kind import NUMERIC, Kind, kind_of
from lapse.core.expression.message import Scalar
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.syntax import Affix, Between, Comparison, In, Like, Literal, Node

_FLIPPED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT: Final = Kind.NULL | Kind.STRING
_TEXT_TESTS: Final = {
    "contains": "(type({first}) is str and {a} in {x})",
    "prefix": "(type({first}) is str and {x}.startswith({a}))",
    "suffix": "(type({first}) is str and {x}.endswith({a}))",
    "member": "(type({first}) is str and {x} in {a})",
}

_BEGINS: Final = "(type({first}) is str and {x}[:{b}] == {a})"
"""The test for one prefix. It is quicker than a call of `startswith`."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A predicate of one operand.

    Attributes:
        operand: the operand.
        condition: the template of the condition.
        constants: the constants `a` and `b` of the template.
        null_safe: whether the condition is false, without an exception, for NULL.
    """

    operand: Node
    condition: str
    constants: tuple[Any, ...]
    null_safe: bool


def predicate_of(node: Node) -> Predicate | None:
    """Return a node as a predicate of one operand; None if it is not one."""
    match node:
        case Comparison(operator, operand, Literal(value)) if value is not None:
            return _comparison(operator, operand, value)
        case Comparison(operator, Literal(value), operand) if value is not None:
            return _comparison(_FLIPPED[operator], operand, value)
        case Between(operand, Literal(low), Literal(high)):
            return _between(operand, low, high)
        case In(operand, items):
            return _membership(operand, items)
        case Affix(operand, (prefix,), False):
            return Predicate(operand, _BEGINS, (prefix, len(prefix)), True)
        case Affix(operand, affixes, at_end):
            return Predicate(operand, _TEXT_TESTS["suffix" if at_end else "prefix"], (affixes,), True)
        case Like(operand, text):
            pattern = read_pattern(text)
            if pattern.test == "regex":
                return None
            if pattern.test == "prefix" and len(pattern.texts) == 1:
                return Predicate(operand, _BEGINS, (pattern.texts[0], len(pattern.texts[0])), True)
            constant: Any = pattern.texts
            if pattern.test == "member":
                constant = frozenset(constant)
            elif len(pattern.texts) == 1:
                constant = pattern.texts[0]
            return Predicate(operand, _TEXT_TESTS[pattern.test], (constant,), True)
        case _:
            return None


def _comparison(operator: str, operand: Node, value: Scalar) -> Predicate:
    if operator in ("=", "!="):
        return _equality(operator, operand, value)
    if isinstance(value, str):
        if kind_of(operand) in _TEXT:
            return Predicate(operand, f"({{first}} {operator} {{a}})", (value,), False)
        return Predicate(operand, f"(type({{first}}) is str and {{x}} {operator} {{a}})", (value,), True)
    if kind_of(operand) in NUMERIC:
        return Predicate(operand, f"({{first}} {operator} {{a}})", (value,), False)
    return Predicate(operand, f"(type({{first}}) in numeric and {{x}} {operator} {{a}})", (value,), True)


def _equality(operator: str, operand: Node, value: Scalar) -> Predicate:
    """Return an equality. Opaque numbers, such as decimals, must not equal constants, so their type is checked.

    Strings need no check, because no opaque value equals a string in Python.
    """
    checked = not isinstance(value, str) and Kind.OPAQUE in kind_of(operand)
    equal = "(type({first}) in numeric and {x} == {a})" if checked else "({first} == {a})"
    if operator == "=":
        return Predicate(operand, equal, (value,), True)
    return Predicate(operand, f"(not {equal})", (value,), False)


def _between(operand: Node, low: Scalar, high: Scalar) -> Predicate | None:
    if isinstance(low, str) and isinstance(high, str):
        return Predicate(operand, "(type({first}) is str and {a} <= {x} <= {b})", (low, high), True)
    if isinstance(low, int | float) and isinstance(high, int | float):
        return Predicate(operand, "(type({first}) in numeric and {a} <= {x} <= {b})", (low, high), True)
    return None


def _membership(operand: Node, items: tuple[Node, ...]) -> Predicate | None:
    values = [item.value for item in items if isinstance(item, Literal)]
    if len(values) < len(items) or None in values:
        return None
    members = frozenset(value for value in values if value == value)
    if all(isinstance(value, str) for value in members):
        return Predicate(operand, "(type({first}) is str and {x} in {a})", (members,), True)
    if Kind.OPAQUE in kind_of(operand):
        return Predicate(operand, "(type({first}) in scalars and {x} in {a})", (members,), True)
    return Predicate(operand, "({first} in {a})", (members,), True)
