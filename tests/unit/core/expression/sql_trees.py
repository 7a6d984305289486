"""Random expressions of the part of the language that is SQL, and rows to evaluate them on."""

from hypothesis import strategies as st

from lapse.core.expression.syntax import (
    And,
    Arithmetic,
    Between,
    Call,
    Case,
    Comparison,
    In,
    IsNull,
    Literal,
    Negative,
    Not,
    Or,
    Path,
)

ROWS = [
    {"a": a, "b": b, "s": s, "t": t, "f": f}
    for a, b, s, t, f in [
        (1, 2, "A", "B", True),
        (None, 2, "A", None, False),
        (0, None, None, "A", None),
        (-3, -3, "", "", True),
        (7, 0, "b", "A", None),
        (None, None, None, None, None),
        (2, 1, "AB", "AB", False),
    ]
]

small = st.builds(Literal, st.integers(0, 5))
numbers = st.recursive(
    st.one_of(small, st.just(Literal(None)), st.just(Path(("a",))), st.just(Path(("b",)))),
    lambda inner: st.one_of(
        st.builds(Arithmetic, st.sampled_from("+-*"), inner, inner),
        st.builds(Negative, st.just(Path(("a",)))),
        st.builds(lambda node, divisor: Arithmetic("%", node, Literal(divisor)), inner, st.integers(1, 4)),
        st.builds(lambda *nodes: Call("COALESCE", nodes), inner, inner),
        st.builds(lambda *nodes: Call("NULLIF", nodes), inner, inner),
    ),
    max_leaves=4,
)
texts = st.one_of(
    st.builds(Literal, st.sampled_from(["", "A", "AB", "b"])), st.just(Path(("s",))), st.just(Path(("t",)))
)
operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
predicates = st.one_of(
    st.builds(Comparison, operators, numbers, numbers),
    st.builds(Comparison, operators, texts, texts),
    st.builds(In, numbers, st.lists(numbers, min_size=1, max_size=3).map(tuple)),
    st.builds(In, texts, st.lists(texts, min_size=1, max_size=3).map(tuple)),
    st.builds(Between, numbers, numbers, numbers),
    st.builds(Between, texts, texts, texts),
    st.builds(IsNull, st.one_of(numbers, texts)),
    st.just(Path(("f",))),
    st.builds(Literal, st.sampled_from([True, False])),
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(IsNull, inner),
        st.builds(lambda c, a, b: Case(((c, a),), b), inner, inner, inner),
    ),
    max_leaves=6,
)
