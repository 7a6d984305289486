"""Compiler: turns expressions into Python functions (X1).

A function is generated from tree nodes only. Every constant, path step and helper is a name in the function's globals,
which have no builtins. So no character of the expression's text reaches the generated source.

A node is generated for one of three purposes: its *value*, whether it is *true*, or whether it is *false*. The latter
two are plain Python conditions, so a filter needs no three-valued logic: `NOT x` is true if `x` is false, and `a AND b`
is false if one of them is. Each node is generated once, for one purpose, so the source grows linearly.

The common cases (members of objects, comparisons with constants, arithmetic on numbers) are inlined. Arithmetic of a
float and an integer beyond its range raises OverflowError. Such an evaluation is repeated by a second function, which
calls the operations instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lapse.core.expression import operations
from lapse.core.expression.functions import FUNCTIONS
from lapse.core.expression.kind import LOGICAL, Kind, kind_of
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.predicate import Predicate, predicate_of
from lapse.core.expression.scope import Scope
from lapse.core.expression.syntax import (
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
    children,
)

_SPILL: Final = 12
"""The number of levels after which a subexpression becomes a separate function, since Python limits nesting."""

_NULL_OR_NUMBER: Final = Kind.NULL | Kind.NUMBER


def compile_condition(node: Node) -> Callable[..., bool]:
    """Return a function of (payload, message=None) that says whether the expression is true."""
    generated: Callable[..., bool] = _Generator().function(node, "true")
    return generated


def compile_result(node: Node) -> Callable[..., Any]:
    """Return a function of (payload, message=None) that computes the expression; opaque values become None."""
    return _Generator().function(node, "value")


class _Generator(Scope):
    """Generates the functions of one expression."""

    def __init__(self, *, inline: bool = True) -> None:
        super().__init__()
        self.inline = inline
        self.may_overflow = False

    def function(self, node: Node, purpose: str) -> Callable[..., Any]:
        """Return the compiled function of a node for a purpose."""
        code = self.part(node, purpose, 0)
        if purpose == "value" and Kind.OPAQUE in kind_of(node):
            code = f"{self.name(operations.scalar)}({code})"
        if not self.may_overflow:
            return self.define(f"    return {code}")
        self.names["careful"] = _compile_without_inlining(node, purpose)
        self.names["OverflowError"] = OverflowError
        return self.define(
            f"    try:\n        return {code}\n    except OverflowError:\n        return careful(payload, message)"
        )

    def source_for_reuse(self, node: Node, depth: int) -> tuple[str, str]:
        """Return source that evaluates an operand, and source for each further use of its value."""
        if isinstance(node, Literal):
            return self.name(node.value), self.name(node.value)
        variable = self.temporary()
        return f"({variable} := {self.value(node, depth)})", variable

    def part(self, node: Node, purpose: str, depth: int) -> str:
        """Return source of a node for a purpose. Deep nodes become separate functions."""
        generate = {"value": self.plain_value, "true": self.plain_true, "false": self.plain_false}[purpose]
        if depth < _SPILL or not children(node):
            return generate(node, depth + 1)
        function = self.define(f"    return {generate(node, 1)}")
        return f"{function.__name__}(payload, message)"

    def value(self, node: Node, depth: int) -> str:
        """Return source of a node's value."""
        return self.part(node, "value", depth)

    def true(self, node: Node, depth: int) -> str:
        """Return source of the condition that a node is true."""
        return self.part(node, "true", depth)

    def false(self, node: Node, depth: int) -> str:
        """Return source of the condition that a node is false."""
        return self.part(node, "false", depth)

    def logical(self, node: Node, depth: int) -> str:
        """Return source of a node's three-valued truth."""
        code = self.value(node, depth)
        return code if kind_of(node) in LOGICAL else f"{self.name(operations.truth)}({code})"

    def call(self, helper: Any, *nodes: Node, depth: int) -> str:
        """Return source that calls a helper on the values of nodes."""
        return f"{self.name(helper)}({', '.join(self.value(node, depth) for node in nodes)})"

    def plain_value(self, node: Node, depth: int) -> str:  # noqa: C901 - one case per node
        """Return source of a node's value, at this level."""
        if predicate := predicate_of(node):
            first, again = self.source_for_reuse(predicate.operand, depth)
            return f"(None if {first} is None else {self.condition(predicate, again, again)})"
        match node:
            case Literal(value):
                return self.name(value)
            case Path(steps):
                return self.path(steps)
            case Attribute(name, argument):
                return self.attribute(name, argument)
            case Negative(operand):
                return self.call(operations.negative, operand, depth=depth)
            case Arithmetic(operator, left, right):
                return self.calculation(operator, left, right, depth)
            case Comparison(operator, left, right):
                return self.call(operations.COMPARISONS[operator], left, right, depth=depth)
            case Not(operand):
                variable = self.temporary()
                return f"(None if ({variable} := {self.logical(operand, depth)}) is None else not {variable})"
            case And(operands):
                return self.chain(operands, "False", "True", depth)
            case Or(operands):
                return self.chain(operands, "True", "False", depth)
            case In(operand, items):
                listed = ", ".join(self.value(item, depth) for item in items)
                return f"{self.name(operations.is_in)}({self.value(operand, depth)}, ({listed},))"
            case Between(operand, low, high):
                return self.call(operations.between, operand, low, high, depth=depth)
            case Like(operand, text):
                pattern = read_pattern(text)
                search, longest = self.name(pattern.search), self.name(pattern.longest)
                return f"{self.name(operations.like)}({self.value(operand, depth)}, {search}, {longest})"
            case Call(name, arguments):
                return self.call(FUNCTIONS[name].implementation, *arguments, depth=depth)
            case Case():
                return self.choice(node, "value", depth)
            case _:
                return self.plain_true(node, depth)

    def plain_true(self, node: Node, depth: int) -> str:
        """Return source of the condition that a node is true, at this level."""
        if predicate := predicate_of(node):
            first, again = self.source_for_reuse(predicate.operand, depth)
            if predicate.null_safe:
                return self.condition(predicate, first, again)
            return f"({first} is not None and {self.condition(predicate, again, again)})"
        match node:
            case Literal(value):
                return "True" if operations.truth(value) else "False"
            case And(operands):
                return f"({' and '.join(self.true(operand, depth) for operand in operands)})"
            case Or(operands):
                return f"({' or '.join(self.true(operand, depth) for operand in operands)})"
            case Not(operand):
                return self.false(operand, depth)
            case IsNull(operand):
                return f"({self.value(operand, depth)} is None)"
            case IsNan(operand):
                return self.call(operations.is_nan, operand, depth=depth)
            case Like(operand, text):
                pattern = read_pattern(text)
                first, again = self.source_for_reuse(operand, depth)
                search, longest = self.name(pattern.search), self.name(pattern.longest)
                return f"(type({first}) is str and len({again}) <= {longest} and {search}({again}) is not None)"
            case Case():
                return self.choice(node, "true", depth)
            case _:
                return f"({self.logical(node, depth)} is True)"

    def plain_false(self, node: Node, depth: int) -> str:
        """Return source of the condition that a node is false, at this level."""
        if predicate := predicate_of(node):
            first, again = self.source_for_reuse(predicate.operand, depth)
            return f"({first} is not None and not {self.condition(predicate, again, again)})"
        match node:
            case Literal(value):
                return "True" if operations.truth(value) is False else "False"
            case And(operands):
                return f"({' or '.join(self.false(operand, depth) for operand in operands)})"
            case Or(operands):
                return f"({' and '.join(self.false(operand, depth) for operand in operands)})"
            case Not(operand):
                return self.true(operand, depth)
            case IsNull() | IsNan():
                return f"(not {self.plain_true(node, depth)})"
            case Case():
                return self.choice(node, "false", depth)
            case _:
                return f"({self.logical(node, depth)} is False)"

    def condition(self, predicate: Predicate, first: str, again: str) -> str:
        """Return source of a predicate's condition."""
        constants = dict(zip("ab", map(self.name, predicate.constants), strict=False))
        return predicate.condition.format(first=first, x=again, **constants)

    def chain(self, operands: tuple[Node, ...], decisive: str, otherwise: str, depth: int) -> str:
        """Return source of the value of AND, which one false operand decides, or OR, which one true operand decides."""
        variables = [self.temporary() for _ in operands]
        decided = " or ".join(
            f"({variable} := {self.logical(operand, depth)}) is {decisive}"
            for variable, operand in zip(variables, operands, strict=True)
        )
        unknown = " or ".join(f"{variable} is None" for variable in variables)
        return f"({decisive} if {decided} else None if {unknown} else {otherwise})"

    def choice(self, node: Case, purpose: str, depth: int) -> str:
        """Return source of a CASE for a purpose."""
        branches = " ".join(
            f"{self.part(value, purpose, depth)} if {self.true(condition, depth)} else"
            for condition, value in node.branches
        )
        return f"({branches} {self.part(node.default, purpose, depth)})"

    def calculation(self, operator: str, left: Node, right: Node, depth: int) -> str:
        """Return source of arithmetic, inlined for numbers, by a call of the operation for other values."""
        operation = operations.ARITHMETIC[operator]
        kinds = kind_of(left), kind_of(right)
        if not self.inline or operator == "%" or not all(Kind.NUMBER in kind for kind in kinds):
            return self.call(operation, left, right, depth=depth)
        self.may_overflow = True
        (first, left_again), (second, right_again) = (
            self.source_for_reuse(left, depth),
            self.source_for_reuse(right, depth),
        )
        checks = []
        for node, kind, evaluated in zip((left, right), kinds, (first, second), strict=True):
            if isinstance(node, Literal):
                continue
            if kind in _NULL_OR_NUMBER:
                checks.append(f"({evaluated} is not None)")
            else:
                checks.append(f"(type({evaluated}) in numbers)")
        otherwise = right_again
        if len(checks) > 1 and _is_member(right):
            # `and` is quicker, and may skip the right operand, which is then looked up again.
            condition, otherwise = " and ".join(checks), self.value(right, depth)
        else:
            condition = " & ".join(checks) or "True"
        if operator == "/":
            condition = f"({condition}) and {right_again}"
        fallback = f"{self.name(operation)}({left_again}, {otherwise})"
        return f"({left_again} {operator} {right_again} if {condition} else {fallback})"


def _is_member(node: Node) -> bool:
    """Return whether a node is a member of the payload itself, which costs one lookup."""
    return isinstance(node, Path) and len(node.steps) == 1 and isinstance(node.steps[0], str)


def _compile_without_inlining(node: Node, purpose: str) -> Callable[..., Any]:
    """Return the function without inlined arithmetic, which is generated on first use."""
    compiled: list[Callable[..., Any]] = []

    def evaluate_slowly(payload: Any, message: Any) -> Any:
        if not compiled:
            compiled.append(_Generator(inline=False).function(node, purpose))
        return compiled[0](payload, message)

    return evaluate_slowly
