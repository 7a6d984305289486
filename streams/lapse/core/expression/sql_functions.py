"""The functions of the language that Spark SQL has as well (X1)."""

from __future__ import annotations

from typing import Final, NamedTuple


class SparkFunction(NamedTuple):
    """The form of a function in Spark SQL, with kind and number of its arguments, and the kind of its result."""

    template: str
    takes: str
    arguments: int
    yields: str


FUNCTIONS: Final = {
    "UPPER": SparkFunction("upper({0})", "string", 1, "string"),
    "LOWER": SparkFunction("lower({0})", "string", 1, "string"),
    "LENGTH": SparkFunction("length({0})", "string", 1, "number"),
    "REPLACE": SparkFunction("replace({0}, {1}, {2})", "string", 3, "string"),
    "INSTR": SparkFunction("locate({1}, {0})", "string", 2, "number"),
    "INSTR_I": SparkFunction("locate(lower({1}), lower({0}))", "string", 2, "number"),
    "STREQUAL_I": SparkFunction("(lower({0}) = lower({1}))", "string", 2, "boolean"),
    "ABS": SparkFunction("abs(CAST({0} AS DOUBLE))", "number", 1, "number"),
    "SIGN": SparkFunction("sign(CAST({0} AS DOUBLE))", "number", 1, "number"),
}
"""Spark's functions by canonical name."""


def quoted(text: str) -> str:
    """Return a Spark SQL string literal."""
    escaped = (
        text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    )
    return f"'{escaped}'"
