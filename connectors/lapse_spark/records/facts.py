"""Facts: columns that Spark computes once, even if many columns and conditions use them.

Spark's optimizer copies the definition of a column into every filter on it, and so on recursively. For columns from
twenty headers this made plans of 600,000 characters, and 3 s of planning for a thousand records.

The optimizer copies only deterministic expressions. So a fact also uses the partition id, which Spark treats as
nondeterministic. Such a column is computed where it is selected, and filters on it come after that. A column that is
never used is still dropped.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def compute_once(fact: Column) -> Column:
    """Return a column that is computed only where it is selected, and dropped if it is not used."""
    return F.when(F.spark_partition_id() >= 0, fact)
