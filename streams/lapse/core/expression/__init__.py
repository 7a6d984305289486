"""The expression language: filters, priorities and barriers over messages (X1; reference: docs/expressions.md)."""

from lapse.core.expression.compiled import Equality, Expression, Filter, Value, compile_filter, compile_value
from lapse.core.expression.error import ExpressionError
from lapse.core.expression.message import Message, Scalar
from lapse.core.expression.parser import grammar, parse
from lapse.core.expression.printer import to_text
from lapse.core.expression.priority import priority_of
from lapse.core.expression.sql import to_spark_sql, to_spark_sql_value
from lapse.core.expression.sql_columns import SparkColumn, SparkColumns

__all__ = [
    "Equality",
    "Expression",
    "ExpressionError",
    "Filter",
    "Message",
    "Scalar",
    "SparkColumn",
    "SparkColumns",
    "Value",
    "compile_filter",
    "compile_value",
    "grammar",
    "parse",
    "priority_of",
    "to_spark_sql",
    "to_spark_sql_value",
    "to_text",
]
