"""Converts rows of the driver to a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str | StructType) -> DataFrame:
    """Return a DataFrame of rows, which become a part of its plan.

    `spark.createDataFrame(rows)` starts a Python process at each use of the DataFrame. This function needs none, and
    Spark knows the small number of rows.

    Args:
        spark: the Spark session.
        rows: the rows, some thousands at most.
        schema: names and types of the columns, as a type or as text in SQL's notation.
    """
    columns = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    data = (
        LocalDataToArrowConversion.convert(list(rows), columns, False)
        if rows
        else to_arrow_schema(columns).empty_table()
    )
    return spark.createDataFrame(data, columns)
