"""Facts of a record that are computed once, however many columns and conditions are made of them.

Spark's optimizer puts the definition of a column into every filter on it, and the definitions of those in turn. For
columns out of twenty headers that grew to plans of 600,000 characters, and 3 s of planning for a thousand records.
Filters are not pushed through a generator, so the facts go through one that makes one row of each.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def once(*facts: Column) -> Column:
    """Compute named columns once per row; to be used in a `select`, which they join under their names."""
    return F.inline(F.array(F.struct(*facts)))


def fields(struct: Column) -> Column:
    """Compute a struct once per row, and select its fields; all are null where the struct is."""
    return F.inline(F.array(struct))
