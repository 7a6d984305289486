"""docs/expressions.md lists everything, and its examples of errors are what is printed."""

import re
from pathlib import Path

import pytest

from lapse.core.expression import ExpressionError, compile_filter, limits
from lapse.core.expression.functions import ALIASES, ATTRIBUTES, FUNCTIONS

pytestmark = pytest.mark.feature("X1")

REFERENCE = (Path(__file__).parents[4] / "docs" / "expressions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_every_function_is_documented(function) -> None:
    assert f"| `{function.name}({function.parameters})` | {function.result} | {function.summary} |" in REFERENCE


@pytest.mark.parametrize("name", [*ALIASES, *ATTRIBUTES])
def test_every_other_name_is_documented(name: str) -> None:
    assert f"`{name}" in REFERENCE


@pytest.mark.parametrize("name", [name for name in vars(limits) if name.startswith("MAX_")])
def test_every_limit_is_documented(name: str) -> None:
    value = getattr(limits, name)
    shown = ", ".join(f"{one:,}" for one in value) if isinstance(value, tuple) else f"{value:,}"
    assert shown in REFERENCE.partition("## Limits")[2]


@pytest.mark.parametrize("example", re.findall(r"```\n(expression, line .*?)\n```", REFERENCE, re.DOTALL))
def test_errors_look_as_documented(example: str) -> None:
    line = int(re.match(r"expression, line (\d+)", example)[1])
    text = "\n" * (line - 1) + example.splitlines()[1][2:]
    with pytest.raises(ExpressionError) as caught:
        compile_filter(text)
    assert str(caught.value) == example


@pytest.mark.parametrize("example", re.findall(r"^```\n(/price.*?)\n```", REFERENCE, re.DOTALL | re.MULTILINE))
def test_the_first_examples_compile(example: str) -> None:
    for line in example.splitlines():
        compile_filter(line)
