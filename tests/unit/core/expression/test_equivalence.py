"""Generated functions do what the reference evaluator says, for any expression and any payload."""

from typing import Any

import pytest
from hypothesis import given, settings

from lapse.core.expression.compiler import compile_condition, compile_result
from lapse.core.expression.operations import scalar
from lapse.core.expression.oracle import evaluate
from lapse.core.expression.parser import parse
from lapse.core.expression.printer import to_text
from lapse.core.expression.rewriting import equalities_of, simplified
from lapse.core.expression.syntax import Literal, Node, Path
from support.suite.at_length import examples
from unit.core.expression.trees import Sample, is_true, messages, same, trees

pytestmark = pytest.mark.feature("X1")


@settings(max_examples=examples(600), deadline=None)
@given(tree=trees)
def test_text_of_a_tree_parses_to_the_same_tree(tree: Node) -> None:
    assert repr(parse(to_text(tree))) == repr(tree)


@settings(max_examples=examples(1000), deadline=None)
@given(tree=trees, message=messages)
def test_generated_values_equal_the_reference(tree: Node, message: Sample) -> None:
    expected = scalar(evaluate(tree, message.payload, message))
    assert same(compile_result(tree)(message.payload, message), expected)


@settings(max_examples=examples(1000), deadline=None)
@given(tree=trees, message=messages)
def test_generated_conditions_equal_the_reference(tree: Node, message: Sample) -> None:
    assert compile_condition(tree)(message.payload, message) is is_true(tree, message.payload, message)


@settings(max_examples=examples(1000), deadline=None)
@given(tree=trees, message=messages)
def test_simplified_expressions_mean_the_same(tree: Node, message: Sample) -> None:
    simple = simplified(tree)
    expected = scalar(evaluate(tree, message.payload, message))
    assert same(scalar(evaluate(simple, message.payload, message)), expected)
    assert same(compile_result(simple)(message.payload, message), expected)
    assert compile_condition(simple)(message.payload, message) is is_true(tree, message.payload, message)


@settings(max_examples=examples(300), deadline=None)
@given(tree=trees, message=messages)
def test_equalities_hold_wherever_an_expression_is_true(tree: Node, message: Sample) -> None:
    if is_true(tree, message.payload, message):
        for path, literal in equalities_of(simplified(tree)):
            assert _at(message.payload, path) == literal.value


def _at(payload: Any, path: Path) -> Any:
    return evaluate(path, payload)


def test_constants_that_only_differ_in_type_stay_apart() -> None:
    assert same(compile_result(parse("IF(/a, 1, 1.0)"))({"a": False}), 1.0)
    assert same(compile_result(parse("IF(/a, 1, TRUE)"))({"a": True}), 1)
    assert simplified(parse("1 = TRUE")) == Literal(True)
