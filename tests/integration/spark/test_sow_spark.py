"""The compacted topic of a SOW topic, read by a plain Spark batch: nothing of lapse's is used to read it (S8)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse_client import Connection, Publisher, SowClient
from support.kafka.log import until
from support.processes.worker import Worker

QUERY = """
SELECT CAST(key AS STRING) AS key, CAST(latest.value AS STRING) AS value, CAST(latest.deadline AS LONG) AS expires_at_ms
FROM (
    SELECT key, max_by(
        struct(value, CAST(get(filter(headers, h -> h.key = 'lapse-expires-at-ms'), 0).value AS STRING) AS deadline),
        offset
    ) AS latest
    FROM state GROUP BY key
)
WHERE latest.value IS NOT NULL
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.feature("S8", "S2", "S3", "S4")
def test_a_plain_batch_has_what_a_query_shows(spark, kafka: str, unique: Callable[[str], str], tmp_path: Path) -> None:
    name = unique("prices")
    entity = f'[sow."{name}"]\npartitions = 2\nexpiration = "enabled"\n'
    connection = Connection(kafka)
    with Worker(tmp_path, kafka, unique("app"), entity), SowClient(name, connection=connection) as client:
        with Publisher(connection) as publisher:
            for number in range(200):
                publisher.submit(name, json.dumps({"n": number}), f"k{number}", ttl_ms=3_600_000 if number % 2 else 0)
            for number in range(50):
                publisher.submit(name, json.dumps({"d": number}), f"k{number}", ttl_ms=7_200_000, delta=True)
            for number in range(50, 60):
                publisher.submit(name, None, f"k{number}")
            for number in range(60, 70):
                publisher.submit(name, b"{}", f"k{number}", ttl_ms=1_000)
            publisher.flush()
        until(lambda: sum(1 for _ in client.query()) == 180, "what is left")
        shown = {record.key: (json.loads(record.value or b""), record.expires_at_ms) for record in client.query()}
        read = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", kafka)
            .option("subscribe", f"lapse.sow.{name}")
            .option("includeHeaders", "true")
            .load()
        )
        read.createOrReplaceTempView("state")

        def table() -> dict[bytes, object]:
            rows = spark.sql(QUERY).collect()
            return {row.key.encode(): (json.loads(row.value), row.expires_at_ms) for row in rows}

        until(lambda: table() == shown, "the tombstones of what has expired", 60)
