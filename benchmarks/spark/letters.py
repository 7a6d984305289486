"""Measures dead letters read by Spark, rows per CPU second: the reader beside a hand-written query on the topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from benchmarks.instruments.load import create
from lapse.core.reason import Reason
from lapse.protocol import dead_letter, topic
from lapse.protocol import header as names
from lapse.protocol.bookmark import Bookmark
from lapse_spark import Connection, read, session

_PARTITIONS: Final = 4
_PAYLOAD: Final = b'{"id":123456789,"price":101.25,"qty":40,"symbol":"ABC","note":""}'
_HEADERS: Final = [("lapse-ttl-ms", b"3600000"), ("trace", b"0af7651916cd43dd8448eb211c80319c")]
_AT_MS: Final = 1_750_000_000_000


def run(bootstrap_servers: str, letters: int = 1_000_000, rounds: int = 3) -> Figures:
    """Write dead letters, and read them in both ways by turns. The best round of each counts.

    Args:
        bootstrap_servers: the broker.
        letters: the number of dead letters.
        rounds: how often each query runs, after one run to warm up.
    """
    queue = f"letters-{time.time_ns()}"
    name = topic.dead_letters(queue)
    create(bootstrap_servers, name, _PARTITIONS)
    _write(bootstrap_servers, queue, letters)
    # Spark keeps each query's consumers with their fetched data for minutes, and there are dozens of queries.
    spark = session("lapse letters benchmark", config={"spark.driver.memory": "3g"})
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    connection = Connection(bootstrap_servers)
    figures: Figures = {"messages": letters}
    try:
        for question, (ask, by_hand) in _QUESTIONS.items():
            spent: dict[str, list[float]] = {"reader": [], "by_hand": []}
            for _ in range(rounds + 1):
                for way in spent:
                    before = cpu_s(driver)
                    if way == "reader":
                        answer = ask(read.dead_letters(spark, connection, names=[name]))
                    else:
                        answer = by_hand(_columns(read.records(spark, connection, names=[name])))
                    spent[way].append(cpu_s(driver) - before)
                    if answer != letters:
                        raise RuntimeError(f"{question}, {way}: {answer} letters, not {letters}")
            rates = {way: letters / min(some[1:]) for way, some in spent.items()}
            figures |= {f"{question}_{way}": rate for way, rate in rates.items()}
            figures[f"{question}_ratio"] = rates["reader"] / rates["by_hand"]
    finally:
        spark.stop()
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        for done in admin.delete_topics([name]).values():
            done.result()
    return figures


def _count(data: DataFrame) -> int:
    return data.count()


def _by_reason(data: DataFrame) -> int:
    groups = data.groupBy("entity", F.array_join("reasons", ",")).agg(F.count("*").alias("letters")).collect()
    return sum(row["letters"] for row in groups)


_BY_NAME: Final = {
    "id": (names.LAPSE_ID, "string"),
    "entity": (names.DLQ_GROUP, "string"),
    "topic": (names.DLQ_TOPIC, "string"),
    "partition": (names.DLQ_PARTITION, "int"),
    "offset": (names.DLQ_OFFSET, "bigint"),
    "message": (names.DLQ_MESSAGE, "string"),
    "delivery_count": (names.DLQ_DELIVERY_COUNT, "int"),
    "cancel_count": (names.CANCEL_COUNT, "int"),
    "redriven_count": (names.REDRIVEN_COUNT, "int"),
    "expired_at_ms": (names.EXPIRED_AT_MS, "bigint"),
    "expires_at_ms": ("lapse-expires-at-ms", "bigint"),
    "epoch": (names.EPOCH, "bigint"),
}
_ALL: Final = [*_BY_NAME, "reasons", "died_at", "letter_topic", "letter_partition", "letter_offset", "letter_at"]


def _columns(raw: DataFrame) -> DataFrame:
    """Make the reader's columns by hand, given that no header occurs twice."""
    letter = {"topic": "letter_topic", "partition": "letter_partition", "offset": "letter_offset"}
    kept = [F.col(name).alias(alias) for name, alias in {**letter, "timestamp": "letter_at"}.items()]
    named = raw.select(*kept, "key", "value", F.map_from_entries("headers").alias("_facts"))
    texts = {column: F.col("_facts")[name].cast("string").cast(kind) for column, (name, kind) in _BY_NAME.items()}
    made = {
        **texts,
        "reasons": F.split(F.col("_facts")[names.REASONS].cast("string"), ","),
        "died_at": F.timestamp_millis(texts["expired_at_ms"]),
    }
    return named.select("*", *(column.alias(name) for name, column in made.items()))


def _count_all_columns(data: DataFrame) -> int:
    """Compute every column of every row, and count the rows, so that Spark skips nothing."""
    made = F.count(F.when(F.xxhash64(*_ALL, "key", "value").isNotNull(), 1))
    return int(data.agg(made).collect()[0][0])


def _readable(letters: DataFrame) -> int:
    return _count_all_columns(letters.where(F.col("fault").isNull()))


def _with_id(records: DataFrame) -> int:
    return _count_all_columns(records.where(F.col("id").isNotNull()))


_Ask = Callable[[DataFrame], int]
_QUESTIONS: Final[dict[str, tuple[_Ask, _Ask]]] = {
    "count": (_count, _count),
    "by_reason": (_by_reason, _by_reason),
    "whole": (_count_all_columns, _count_all_columns),
    "readable": (_readable, _with_id),
}
"""The queries by name: one on the reader, and the same by hand."""


def _write(bootstrap_servers: str, queue: str, letters: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    reasons = [(Reason.TIME_LIMIT,), (Reason.MAX_DELIVERIES,), (Reason.TIME_LIMIT, Reason.MAX_CANCELS)]
    for number in range(letters):
        death = dead_letter.Death(
            entity=queue,
            bookmark=Bookmark(queue, number % _PARTITIONS, number // _PARTITIONS),
            reasons=reasons[number % 3],
            expired_at_ms=_AT_MS + number,
            expires_at_ms=_AT_MS + number,
            delivery_count=number % 5,
            epoch=1,
        )
        named: list[tuple[str, str | bytes | None]] = [*dead_letter.headers(death, _HEADERS)]
        key = b"%d" % number
        while True:
            try:
                producer.produce(topic.dead_letters(queue), _PAYLOAD, key, number % _PARTITIONS, headers=named)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


if __name__ == "__main__":
    alone(run)
