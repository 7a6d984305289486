"""The data pipeline on Spark: dead letters, events, deliveries and SOW state as DataFrames, and the jobs over them.

Read in this order: `session` and `connection` (how Spark starts and reaches Kafka), `schema` (the columns of every
DataFrame), `read` (the readers, with `records`), then the jobs: `monitoring`, `letters`, `ledger` with `account` and
`running`, `instant`, `report`. Each job is a function from DataFrames to DataFrames with a thin runner around it, so
it works both in a notebook and on a schedule.
"""

from lapse_spark.connection import Connection
from lapse_spark.session import session

__all__ = ["Connection", "session"]
