"""Facts of a record that are computed once, however many columns and conditions are made of them, or not at all.

Spark's optimizer puts the definition of a column into every filter on it, and the definitions of those in turn. For
columns out of twenty headers that grew to plans of 600,000 characters, and 3 s of planning for a thousand records.
It does so only with expressions that give the same for the same row, and it does not look at what else they do. So
a fact asks, beside what it is made of, for the number of its partition, which Spark counts as one that does not.
Such a column stays where it was selected, and filters on it stay above. A column that nobody asks for still goes.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def once(fact: Column) -> Column:
    """Compute a column where it is selected, and nowhere else; it is left out where nothing is made of it."""
    return F.when(F.spark_partition_id() >= 0, fact)
