"""Oracle: the reference evaluator, a slow and simple tree of closures that defines what expressions mean (X1).

Tests compare generated functions with it, and the compiler folds constants with it. It shares only the function library
and the check of patterns with the compiler. Every operator is implemented again here, as specified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from lapse.core.expression.functions import FUNCTIONS
from lapse.core.expression.message import Message
from lapse.core.expression.pattern import read_pattern
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

Evaluator: TypeAlias = Callable[[Any, Message | None], Any]
"""A function of the payload and the message."""


def evaluator_of(node: Node) -> Evaluator:  # noqa: C901 - one case per node
    """Return the closure that computes the value of an expression."""
    match node:
        case Literal(value):
            return lambda payload, message: value
        case Path(steps):
            return lambda payload, message: _resolve(payload, steps)
        case Attribute(name, argument):
            return lambda payload, message: None if message is None else _attribute(message, name, argument)
        case Negative(operand):
            inner = evaluator_of(operand)
            return lambda payload, message: _calculate("-", 0, inner(payload, message), unary=True)
        case Arithmetic(operator, left, right):
            first, second = evaluator_of(left), evaluator_of(right)
            return lambda payload, message: _calculate(operator, first(payload, message), second(payload, message))
        case Comparison(operator, left, right):
            first, second = evaluator_of(left), evaluator_of(right)
            return lambda payload, message: _compare(operator, first(payload, message), second(payload, message))
        case Not(operand):
            inner = evaluator_of(operand)
            return lambda payload, message: _not(_truth(inner(payload, message)))
        case And(operands):
            parts = [evaluator_of(operand) for operand in operands]
            return lambda payload, message: _and([_truth(part(payload, message)) for part in parts])
        case Or(operands):
            parts = [evaluator_of(operand) for operand in operands]
            return lambda payload, message: _or([_truth(part(payload, message)) for part in parts])
        case In(operand, items):
            inner, parts = evaluator_of(operand), [evaluator_of(item) for item in items]
            return lambda payload, message: _or(
                [_compare("=", inner(payload, message), part(payload, message)) for part in parts]
            )
        case Between(operand, low, high):
            return evaluator_of(And((Comparison(">=", operand, low), Comparison("<=", operand, high))))
        case IsNull(operand):
            inner = evaluator_of(operand)
            return lambda payload, message: inner(payload, message) is None
        case IsNan(operand):
            inner = evaluator_of(operand)
            return lambda payload, message: isinstance(value := inner(payload, message), float) and math.isnan(value)
        case Like(operand, text):
            inner, pattern = evaluator_of(operand), read_pattern(text)
            longest = pattern.longest if pattern.test == "regex" else None
            return lambda payload, message: _match(inner(payload, message), pattern.search, longest)
        case Affix(operand, affixes, at_end):
            inner = evaluator_of(operand)
            return lambda payload, message: _affix(inner(payload, message), affixes, at_end)
        case Call(name, arguments):
            parts = [evaluator_of(argument) for argument in arguments]
            implementation = FUNCTIONS[name].implementation
            return lambda payload, message: implementation(*[part(payload, message) for part in parts])
        case Case(branches, default):
            pairs = [(evaluator_of(condition), evaluator_of(value)) for condition, value in branches]
            otherwise = evaluator_of(default)
            return lambda payload, message: _choose(pairs, otherwise, payload, message)


def evaluate(node: Node, payload: Any = None, message: Message | None = None) -> Any:
    """Return the value of an expression."""
    return evaluator_of(node)(payload, message)


def _resolve(value: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if type(value) is dict else None
        else:
            value = value[step] if type(value) is list and step < len(value) else None
    return value


def _attribute(message: Message, name: str, argument: str | None) -> Any:
    if name in ("HEADER", "KEY"):
        data = message.key if name == "KEY" else message.headers.get(argument or "")
        try:
            return None if data is None else data.decode("utf-8")
        except UnicodeDecodeError:
            return None
    return getattr(message, name.lower())


def _truth(value: Any) -> bool | None:
    match value:
        case bool():
            return value
        case float() if math.isnan(value):
            return None
        case int() | float():
            return value != 0
        case _:
            return None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _and(values: list[bool | None]) -> bool | None:
    if any(value is False for value in values):
        return False
    return None if any(value is None for value in values) else True


def _or(values: list[bool | None]) -> bool | None:
    return _not(_and([_not(value) for value in values]))


def _compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    numeric = isinstance(left, int | float) and isinstance(right, int | float)
    if not numeric and not (isinstance(left, str) and isinstance(right, str)):
        return operator == "!="
    result: bool = {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]
    return result


def _calculate(operator: str, left: Any, right: Any, *, unary: bool = False) -> Any:
    if left is None or right is None:
        return None
    for operand in (left, right):
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            return math.nan
    if unary:
        return -right
    if operator in "/%" and right == 0:
        return math.nan
    try:
        return _exact(operator, left, right)
    except OverflowError:
        return _exact(operator, _as_float(left), _as_float(right))


def _exact(operator: str, left: int | float, right: int | float) -> int | float:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            if isinstance(left, int) and isinstance(right, int):
                return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
            if math.isinf(left):
                return math.nan
            return math.fmod(left, right)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _match(value: Any, search: Callable[[str], object] | None, longest: int | None) -> bool | None:
    assert search is not None
    if not isinstance(value, str):
        return None if value is None else False
    return None if longest is not None and len(value) > longest else search(value) is not None


def _affix(value: Any, affixes: tuple[str, ...], at_end: bool) -> bool | None:
    if not isinstance(value, str):
        return None if value is None else False
    return any(value.endswith(affix) if at_end else value.startswith(affix) for affix in affixes)


def _choose(pairs: list[tuple[Evaluator, Evaluator]], otherwise: Evaluator, payload: Any, message: Any) -> Any:
    for condition, value in pairs:
        if _truth(condition(payload, message)) is True:
            return value(payload, message)
    return otherwise(payload, message)
