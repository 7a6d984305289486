"""Random syntax trees, payloads and messages."""

import datetime as dt
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from lapse.core.expression.functions import ATTRIBUTES, FUNCTIONS
from lapse.core.expression.oracle import evaluate
from lapse.core.expression.syntax import (
    NAN,
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

PATTERNS = (
    "^A",
    "A$",
    "^A$",
    "^(A|B)$",
    "^(?:A|x.y)",
    "(B|C)$",
    "B",
    "a.c",
    "^A.*B$",
    r"\d+",
    r"^a\.b$",
    r"\$$",
    "(?i)a",
    "",
)


@dataclass
class Sample:
    """A message."""

    payload: Any = None
    headers: dict[str, bytes | None] = field(default_factory=dict)
    key: bytes | None = None
    topic: str = "orders"
    partition: int = 3
    offset: int = 42
    timestamp_ms: int = 1_767_225_600_000


words = st.sampled_from(
    ["", "A", "B", "AB", "ab", "A\n", "x.y", "a.b", "12", "1.5", "2026-02-28T23:59:59Z", "It's", "é€𝄞"]
)
integers = st.one_of(st.integers(-3, 3), st.integers(-(10**6), 10**6), st.sampled_from([2**53 + 1, 2**64, 10**40]))
floats = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.5, 2.0, 1e308]), st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.one_of(st.none(), st.booleans(), integers, floats, words)
constants = st.one_of(scalars, st.just(NAN))
steps = st.one_of(st.sampled_from(["a", "b", "s", "t", "strange 'name\""]), st.integers(0, 2))
paths = st.builds(
    lambda first, rest: Path((first, *rest)), st.sampled_from(["a", "b", "s", "t", "o"]), st.lists(steps, max_size=2)
) | st.builds(lambda rest: Path(("o", *rest)), st.lists(steps, min_size=4, max_size=6))
attributes = st.one_of(
    st.builds(Attribute, st.sampled_from([name for name, count in ATTRIBUTES.items() if not count])),
    st.builds(Attribute, st.just("HEADER"), words),
)
leaves = st.one_of(st.builds(Literal, constants), paths, paths, attributes)


def _negative(node: Node) -> Node:
    """Unary minus, except where a parser would have made a literal of it."""
    value = node.value if isinstance(node, Literal) else None
    plain = type(value) in (int, float) and value is not NAN and not repr(value).startswith("-")
    return Not(node) if plain else Negative(node)


def _call(name: str, arguments: list[Node]) -> Node:
    function = FUNCTIONS[name]
    most = function.most or len(arguments)
    while len(arguments) < function.least:
        arguments = [*arguments, Literal("A")]
    return Call(name, tuple(arguments[: max(most, function.least)]))


def _extend(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(nodes, min_size=2, max_size=3).map(tuple)
    affixes = st.lists(words, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        nodes.map(_negative),
        st.builds(Arithmetic, st.sampled_from("+-*/%"), nodes, nodes),
        st.builds(Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), nodes, nodes),
        st.builds(Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), paths, st.builds(Literal, constants)),
        st.builds(Not, nodes),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(In, nodes, st.lists(nodes, min_size=1, max_size=3).map(tuple)),
        st.builds(In, nodes, st.lists(st.builds(Literal, constants), min_size=1, max_size=4).map(tuple)),
        st.builds(Between, nodes, nodes, nodes),
        st.builds(Between, nodes, st.builds(Literal, constants), st.builds(Literal, constants)),
        st.builds(Like, nodes, st.sampled_from(PATTERNS)),
        st.builds(Affix, nodes, affixes, st.booleans()),
        st.builds(IsNull, nodes),
        st.builds(IsNan, nodes),
        st.builds(_call, st.sampled_from(sorted(FUNCTIONS)), st.lists(nodes, min_size=1, max_size=3)),
        st.builds(Case, st.lists(st.tuples(nodes, nodes), min_size=1, max_size=2).map(tuple), nodes),
    )


trees: st.SearchStrategy[Node] = st.recursive(leaves, _extend, max_leaves=12)
"""Random expressions."""

odd_numbers = st.sampled_from([math.inf, -math.inf, math.nan, 10**400, -(10**400), 1e308])
values = st.recursive(
    st.one_of(scalars, scalars, odd_numbers, st.sampled_from([b"A", Decimal(1), dt.date(2026, 1, 1)])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "s", "t"]), inner, max_size=3)
    ),
    max_leaves=6,
)
payloads = st.one_of(
    st.fixed_dictionaries({}, optional=dict.fromkeys(["a", "b", "s", "t", "o"], values)),
    values,
)
"""Random parsed payloads, odd ones included."""

messages = st.builds(
    Sample,
    payload=payloads,
    headers=st.dictionaries(words, st.sampled_from([None, b"", b"A", b"\xff", "é".encode()]), max_size=2),
    key=st.sampled_from([None, b"A", b"\xfe", b""]),
)
"""Random messages."""


def same(left: Any, right: Any) -> bool:
    """Whether two results are the same: type, sign of zero and NaN included."""
    return type(left) is type(right) and repr(left) == repr(right)


def is_true(tree: Node, payload: Any = None, message: Sample | None = None) -> bool:
    """Whether a filter matches, as the reference evaluator says."""
    return evaluate(And((tree,)), payload, message) is True
