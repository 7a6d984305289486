"""Rows that a program holds, as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str | StructType) -> DataFrame:
    """Return the frame of some rows, which are a part of its plan.

    `spark.createDataFrame(rows)` has a process of Python hand them over, at each use of the frame. Here none is
    needed, and Spark knows how few rows there are.

    Args:
        spark: the session.
        rows: the rows, some thousands at most.
        schema: names and types of their columns; as text they are written like in SQL.
    """
    columns = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    data = (
        LocalDataToArrowConversion.convert(list(rows), columns, False)
        if rows
        else to_arrow_schema(columns).empty_table()
    )
    return spark.createDataFrame(data, columns)
