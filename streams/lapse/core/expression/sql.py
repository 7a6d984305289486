"""SQL: renders expressions as Spark SQL, so that Spark filters with the language of queues and topics (X1).

The SQL is equivalent, NULL and NaN included, or the expression is refused. Spark's columns have one type each, so the
caller states column and kind of each path. Two differences are accepted: arithmetic is in double precision, and the
case of letters follows Java's tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from lapse.core.expression import syntax
from lapse.core.expression.error import ExpressionError
from lapse.core.expression.message import Scalar
from lapse.core.expression.parser import parse
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.printer import path_text, to_text
from lapse.core.expression.rewriting import simplified
from lapse.core.expression.sql_columns import SparkColumns
from lapse.core.expression.sql_functions import FUNCTIONS, quoted
from lapse.core.expression.syntax import Comparison, Node

_LONGEST: Final = 65_536
_INEXACT: Final = 2**53
"""From this integer on, a double does not tell an integer from the next one."""
_NAN: Final = "double('NaN')"
_FALSE: Final = "FALSE"
_NOT_JAVA: Final = re.compile(
    r"\(\?P|\\[ZUN0v]|\\[1-3][0-7]{2}|\{,|(?<!\\)\{(?![0-9]+(?:,[0-9]*)?\})|&&|\[\^?\]|\[[^\]]*\["
)
"""Matches elements that Java's regular expressions lack or interpret differently."""


@dataclass(frozen=True, slots=True)
class _Sql:
    """SQL text and the kind of its value. A `constant` is neither NULL nor NaN. `whole` is as in `SparkColumn`."""

    text: str
    kind: str
    constant: bool = False
    whole: str = ""


def to_spark_sql(text: str, columns: SparkColumns) -> str:
    """Return a filter as a Spark SQL condition, for `DataFrame.filter` or `expr`.

    Raises:
        ExpressionError: the text is not an expression, or Spark SQL has no exact equivalent.
    """
    return _Renderer(text, columns).logical(simplified(parse(text)))


def to_spark_sql_value(text: str, columns: SparkColumns) -> str:
    """Return a value as a Spark SQL expression, for `expr`.

    Raises:
        ExpressionError: the text is not an expression, or Spark SQL has no exact equivalent.
    """
    return _Renderer(text, columns).render(simplified(parse(text))).text


class _Renderer:
    """Renders one expression."""

    def __init__(self, text: str, columns: SparkColumns) -> None:
        self.text = text
        self.columns = columns

    def refuse(self, node: Node, why: str, hint: str = "filter with lapse instead of Spark") -> NoReturn:
        """Raise the error that a node has no exact equivalent."""
        part = to_text(node)
        position = max(0, self.text.find(part))
        raise ExpressionError(f"not expressible in Spark SQL: {why}", self.text, position, length=len(part), hint=hint)

    def render(self, node: Node) -> _Sql:
        """Return a node as SQL of limited length."""
        sql = self.rendered(node)
        if len(sql.text) > _LONGEST:
            self.refuse(node, "the SQL would be too long")
        return sql

    def rendered(self, node: Node) -> _Sql:  # noqa: C901 - one case per node
        """Return a node as SQL of any length."""
        match node:
            case syntax.Literal(value):
                return self.literal(node, value)
            case syntax.Path():
                column = self.columns.paths.get(path_text(node))
                if column is None:
                    self.refuse(node, f"no column is given for {path_text(node)}", "name its column and its kind")
                return _Sql(column.sql, column.kind, whole=column.whole)
            case syntax.Attribute(name, argument):
                return self.attribute(name, argument)
            case syntax.Negative(operand):
                inner = self.number(operand)
                return _Sql(f"(-{inner})", "number")
            case syntax.Arithmetic(operator, left, right):
                return self.arithmetic(operator, self.number(left), self.number(right))
            case Comparison(operator, left, right):
                return _Sql(self.comparison(operator, self.render(left), self.render(right)), "boolean")
            case syntax.Not(operand):
                return _Sql(f"(NOT {self.logical(operand)})", "boolean")
            case syntax.And(operands):
                return _Sql(f"({' AND '.join(map(self.logical, operands))})", "boolean")
            case syntax.Or(operands):
                return _Sql(f"({' OR '.join(map(self.logical, operands))})", "boolean")
            case syntax.In(operand, items):
                equal = [self.comparison("=", self.render(operand), self.render(item)) for item in items]
                return _Sql(f"({' OR '.join(equal)})", "boolean")
            case syntax.Between(operand, low, high):
                bounds = Comparison(">=", operand, low), Comparison("<=", operand, high)
                return self.render(syntax.And(bounds))
            case syntax.Like(operand, pattern):
                return self.like(node, self.render(operand), pattern)
            case syntax.Affix(operand, affixes, at_end):
                function = "endswith" if at_end else "startswith"
                return self.text_test(self.render(operand), function, affixes)
            case syntax.IsNull(operand):
                return _Sql(f"({self.render(operand).text} IS NULL)", "boolean")
            case syntax.IsNan(operand):
                inner_sql = self.render(operand)
                return _Sql(f"isnan({inner_sql.text})" if inner_sql.kind == "number" else _FALSE, "boolean")
            case syntax.Case(branches, default):
                return self.case(node, branches, default)
            case syntax.Call(name, arguments):
                return self.call(node, name, arguments)

    def literal(self, node: Node, value: Scalar) -> _Sql:
        """Return a constant as SQL."""
        if value is None:
            return _Sql("NULL", "null")
        if isinstance(value, bool):
            return _Sql("TRUE" if value else _FALSE, "boolean", constant=True)
        if isinstance(value, str):
            return _Sql(quoted(value), "string", constant=True)
        if value != value:
            return _Sql(_NAN, "number")
        if isinstance(value, int) and abs(value) >= 2**63:
            self.refuse(node, "the integer does not fit 64 bits")
        suffix = "L" if isinstance(value, int) else "D"
        text = f"{value!r}{suffix}" if value >= 0 else f"({value!r}{suffix})"
        whole = text if isinstance(value, int) and abs(value) >= _INEXACT else ""
        return _Sql(text, "number", constant=True, whole=whole)

    def attribute(self, name: str, argument: str | None) -> _Sql:
        """Return an attribute as a column of Spark's Kafka source."""
        columns = self.columns
        match name:
            case "HEADER":
                found = f"filter({columns.headers}, h -> h.key = {quoted(argument or '')})"
                return _Sql(f"try_validate_utf8(CAST(try_element_at({found}, -1).value AS STRING))", "string")
            case "KEY":
                return _Sql(f"try_validate_utf8(CAST({columns.key} AS STRING))", "string")
            case "TOPIC":
                return _Sql(columns.topic, "string")
            case "TIMESTAMP_MS":
                return _Sql(f"unix_millis({columns.timestamp})", "number")
            case _:
                return _Sql({"PARTITION": columns.partition, "OFFSET": columns.offset}[name], "number")

    def number(self, node: Node) -> str:
        """Return an operand of arithmetic as a double, NaN for a value that is not a number."""
        sql = self.render(node)
        if sql.kind in ("number", "null"):
            return f"CAST({sql.text} AS DOUBLE)"
        return f"IF({sql.text} IS NULL, CAST(NULL AS DOUBLE), {_NAN})"

    def arithmetic(self, operator: str, left: str, right: str) -> _Sql:
        """Return arithmetic that neither fails nor divides by zero."""
        if operator not in "/%":
            return _Sql(f"({left} {operator} {right})", "number")
        function = "try_divide" if operator == "/" else "try_mod"
        zero = f"{right} = 0D AND {left} IS NOT NULL"
        return _Sql(f"CASE WHEN {zero} THEN {_NAN} ELSE {function}({left}, {right}) END", "number")

    def comparison(self, operator: str, left: _Sql, right: _Sql) -> str:
        """Return a comparison in which NaN, and values of different kinds, are unequal and unordered."""
        if "null" in (left.kind, right.kind):
            return "CAST(NULL AS BOOLEAN)"
        different = "TRUE" if operator == "!=" else _FALSE
        if (left.kind == "string") != (right.kind == "string"):
            return f"IF({left.text} IS NULL OR {right.text} IS NULL, NULL, {different})"
        if left.kind == right.kind != "number":
            return f"({left.text} {operator} {right.text})"
        one, other = (sql.text if sql.kind == "number" else f"CAST({sql.text} AS INT)" for sql in (left, right))
        odd = [f"isnan({sql.text})" for sql in (left, right) if sql.kind == "number" and not sql.constant]
        if not odd:
            return f"({one} {operator} {other})"
        exact = ""
        if left.whole and right.whole:
            known = f"{left.whole} IS NOT NULL AND {right.whole} IS NOT NULL"
            exact = f"WHEN {known} THEN {left.whole} {operator} {right.whole} "
        present = "".join(f" AND {sql.text} IS NOT NULL" for sql in (left, right) if not sql.constant)
        return f"CASE {exact}WHEN ({' OR '.join(odd)}){present} THEN {different} ELSE {one} {operator} {other} END"

    def logical(self, node: Node) -> str:
        """Return the truth of a value."""
        sql = self.render(node)
        if sql.kind == "boolean":
            return sql.text
        if sql.kind == "number":
            return f"CASE WHEN isnan({sql.text}) THEN NULL ELSE {sql.text} != 0 END"
        return "CAST(NULL AS BOOLEAN)"

    def text_test(self, sql: _Sql, function: str, texts: tuple[str, ...]) -> _Sql:
        """Return a test whether a text starts with, ends with or contains one of several texts."""
        if sql.kind != "string":
            return _Sql(f"IF({sql.text} IS NULL, NULL, FALSE)", "boolean")
        tests = [f"{function}({sql.text}, {quoted(text)})" for text in texts]
        return _Sql(f"({' OR '.join(tests)})", "boolean")

    def like(self, node: Node, sql: _Sql, text: str) -> _Sql:
        """Return a LIKE as plain text functions, or as a regular expression of Java."""
        pattern = read_pattern(text)
        if sql.kind != "string" or pattern.test in ("contains", "prefix", "suffix"):
            function = {"contains": "contains", "suffix": "endswith"}.get(pattern.test, "startswith")
            return self.text_test(sql, function, pattern.texts)
        if pattern.test == "member":
            return _Sql(f"({sql.text} IN ({', '.join(map(quoted, pattern.texts))}))", "boolean")
        if _NOT_JAVA.search(text):
            self.refuse(node, "Java reads this regular expression differently", "write the pattern in a simpler way")
        test = f"{sql.text} RLIKE {quoted('(?Ud)' + text)}"
        return _Sql(f"CASE WHEN length({sql.text}) > {pattern.longest} THEN NULL ELSE {test} END", "boolean")

    def case(self, node: Node, branches: tuple[tuple[Node, Node], ...], default: Node) -> _Sql:
        """Return a CASE, all of whose values must be of one kind."""
        conditions = [self.logical(condition) for condition, _ in branches]
        values = [self.render(value) for value in (*(value for _, value in branches), default)]
        kind = self.common_kind(node, values)
        parts = [f"WHEN {condition} THEN {value.text}" for condition, value in zip(conditions, values, strict=False)]
        return _Sql(f"CASE {' '.join(parts)} ELSE {values[-1].text} END", kind)

    def common_kind(self, node: Node, values: list[_Sql]) -> str:
        """Return the common kind of all values."""
        kinds = {value.kind for value in values} - {"null"}
        if len(kinds) > 1:
            self.refuse(node, "its results are of several kinds")
        return kinds.pop() if kinds else "null"

    def call(self, node: Node, name: str, arguments: tuple[Node, ...]) -> _Sql:
        """Return the call of a function that Spark has as well."""
        values = [self.render(argument) for argument in arguments]
        if name == "COALESCE":
            return _Sql(f"coalesce({', '.join(value.text for value in values)})", self.common_kind(node, values))
        if name == "NULLIF":
            equal = self.comparison("=", *values)
            return _Sql(f"CASE WHEN {equal} THEN NULL ELSE {values[0].text} END", values[0].kind)
        function = FUNCTIONS.get(name)
        if function is None:
            self.refuse(node, f"there is no exact equivalent of {name}")
        if any(value.kind != function.takes for value in values) or len(values) < function.arguments:
            self.refuse(node, f"{name} is only rendered for arguments of kind {function.takes}")
        return _Sql(function.template.format(*(value.text for value in values)), function.yields)
