"""Compiled expressions: filters and values, cached by text (X1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from lapse.core.expression.compiler import compile_condition, compile_result
from lapse.core.expression.error import ExpressionError
from lapse.core.expression.message import Message, Scalar
from lapse.core.expression.parser import parse
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.printer import path_text
from lapse.core.expression.rewriting import equalities_of, simplified
from lapse.core.expression.syntax import Attribute, Like, Node, Path, walk

_CACHE: Final = 1_024

Equality: TypeAlias = tuple[str, bool | int | float | str]
"""The text of a path, and the constant that it must equal."""


class Expression:
    """The common part of filters and values.

    Attributes:
        text: the text as it was given.
        tree: the syntax tree of the text, not simplified.
        paths: the payload paths used, as canonical texts such as `/a/b[0]`.
        uses_payload: whether the payload is used; if not, it need not be parsed.
        attributes: the message attributes used.
        equalities: pairs of a path and a constant, all of which must be equal in the payload for the expression to be
            true. Constants equal in Python (1, 1.0 and True) are equal in the language, too, so a dictionary can be the
            index.
    """

    __slots__ = ("attributes", "equalities", "paths", "text", "tree", "uses_payload")

    def __init__(self, text: str, tree: Node, simple: Node) -> None:
        """Describe an expression; use `compile_filter` or `compile_value`."""
        self.text: Final = text
        self.tree: Final = tree
        self.paths: Final = frozenset(path_text(node) for node, _ in walk(simple) if isinstance(node, Path))
        self.uses_payload: Final = bool(self.paths)
        self.attributes: Final = frozenset(node for node, _ in walk(simple) if isinstance(node, Attribute))
        self.equalities: Final[tuple[Equality, ...]] = tuple(
            (path_text(path), literal.value) for path, literal in equalities_of(simple) if literal.value is not None
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return (compile_filter if isinstance(self, Filter) else compile_value), (self.text,)


class Filter(Expression):
    """A condition on messages.

    Attributes:
        match: the generated function, `match(payload, message=None) -> bool`, which is faster if the parsed payload is
            at hand. Without a message its attributes are NULL.
    """

    __slots__ = ("match",)

    def __init__(self, text: str, tree: Node, simple: Node) -> None:
        """Compile a condition; use `compile_filter`."""
        super().__init__(text, tree, simple)
        self.match: Final = compile_condition(simple)

    def __call__(self, message: Message) -> bool:
        """Return whether the condition is true, neither false nor NULL, for a message."""
        return self.match(message.payload if self.uses_payload else None, message)


class Value(Expression):
    """A value computed from messages.

    Attributes:
        evaluate: the generated function, `evaluate(payload, message=None)`.
        member: the name, if the value is a member of the payload and nothing else.
    """

    __slots__ = ("evaluate", "member")

    def __init__(self, text: str, tree: Node, simple: Node) -> None:
        """Compile a value; use `compile_value`."""
        super().__init__(text, tree, simple)
        self.evaluate: Final[Callable[..., Scalar]] = compile_result(simple)
        step = simple.steps[0] if isinstance(simple, Path) and len(simple.steps) == 1 else None
        self.member: Final = step if isinstance(step, str) else None

    def __call__(self, message: Message) -> Scalar:
        """Return the value for a message: a number, string, boolean or None. Objects and arrays become None."""
        return self.evaluate(message.payload if self.uses_payload else None, message)

    def values(self, messages: Iterable[Message]) -> list[Scalar]:
        """Return the value for each message."""
        evaluate = self.evaluate
        if not self.uses_payload:
            return [evaluate(None, message) for message in messages]
        return [evaluate(message.payload, message) for message in messages]


@lru_cache(maxsize=_CACHE)
def compile_filter(text: str) -> Filter:
    """Compile a condition. The same text yields the same object while it is in the cache.

    Raises:
        ExpressionError: the text is not an expression, or exceeds a limit.
    """
    tree = _evaluable(text)
    return Filter(text, tree, simplified(tree))


@lru_cache(maxsize=_CACHE)
def compile_value(text: str) -> Value:
    """Compile a value, such as a priority. The same text yields the same object while it is in the cache.

    Raises:
        ExpressionError: the text is not an expression, or exceeds a limit.
    """
    tree = _evaluable(text)
    return Value(text, tree, simplified(tree))


def _evaluable(text: str) -> Node:
    """Return the tree of an expression, if the installed packages can evaluate it."""
    tree = parse(text)
    for node, _ in walk(tree):
        if isinstance(node, Like) and read_pattern(node.pattern).search is None:
            raise ExpressionError(
                f"the pattern {node.pattern!r} can take long, and what would make it quick is not installed",
                text,
                hint="install google-re2 (it comes with lapse[worker]), begin the pattern with ^, or use BEGINS WITH",
            )
    return tree
