"""A queue as of an instant: its messages at that time, from the journals of its shards alone (D7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.header import EPOCH
from lapse.recorded.shard_history import ShardHistory
from lapse_client.reading.instant import shown
from lapse_spark.records import header

COLUMNS: Final = (
    "bookmark string, topic string, partition int, offset bigint, state string, expires_at_ms bigint, "
    "delivery_count int, cancel_count int, subscription string, until_ms bigint"
)
"""Columns of one row per message, as in `lapse queue peek --json`, with the bookmark whole and in its parts."""

_SHARD: Final = "_shard int, _exact boolean, _exact_since_ms bigint, _at bigint"
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueueAsOf:
    """A queue as of an instant.

    Attributes:
        messages: DataFrame with `COLUMNS`, and `_shard` and `_at` for their order.
        inexact: shards whose state is unknown then, each with the first instant at which it is known, ms since the
            epoch.
        persisted: the persisted DataFrame behind `messages`.
    """

    messages: DataFrame
    inexact: dict[int, int]
    persisted: DataFrame

    def release(self) -> None:
        """Unpersist the data."""
        self.persisted.unpersist()

    @property
    def sentence(self) -> str:
        """A text that says what is missing; empty if nothing is."""
        if not self.inexact:
            return ""
        shards = ", ".join(str(shard) for shard in sorted(self.inexact))
        since = shown(max(self.inexact.values()))
        return (
            f"Kafka's compaction has removed what shard {shards} had at this instant, and none of its messages is "
            f"shown. Ask for {since} or later."
        )


def journal(entity: str, app_id: str | None, there: set[str]) -> str | None:
    """Return the topic of a queue's journal; None if the cluster has none.

    Args:
        entity: name of the queue.
        app_id: `app_id` of its deployment; None = search for it.
        there: topics of the cluster.

    Raises:
        ValueError: several deployments have an entity of this name.
    """
    if app_id is not None:
        name = topic.changelog(app_id, entity)
        return name if name in there else None
    # `app-orders-changelog` may belong to `orders`, or to `app-orders` of another deployment.
    longer = [name for name in there if name.endswith(f"-{topic.commands(entity).removeprefix(topic.PREFIX)}")]
    others = tuple(topic.changelog("", name.removeprefix(topic.PREFIX).removesuffix(".commands")) for name in longer)
    ends = topic.changelog("", entity)
    found = sorted(name for name in there if name.endswith(ends) and not name.endswith(others))
    if len(found) > 1:
        raise ValueError(
            f"{entity}: which one? There are {', '.join(found)}. Name the lapse.toml of its deployment with --config"
        )
    return found[0] if found else None


def messages(records: DataFrame, entity: str, at_ms: int, acts: bool = True) -> QueueAsOf:
    """Return the messages of a queue as of an instant.

    Args:
        records: the journal (`schema.RAW`), with each partition whole and in order, as `read.records` returns it with
            the option `minPartitions` of 1.
        entity: name of the queue.
        at_ms: the instant, ms since the epoch.
        acts: whether the queue enforced lifetimes then.
    """
    needed = records.select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("at_ms"),
        "key",
        "value",
        header.value(header.newest_first(F.col("headers")), EPOCH).alias("epoch"),
    )

    def rows(batches: Iterable[Any]) -> Iterable[Any]:
        return _read_task(batches, entity, at_ms, acts)

    found = needed.mapInArrow(rows, f"{_SHARD}, {COLUMNS}").persist()
    shards = found.where("bookmark is null and not _exact").select("_shard", "_exact_since_ms").collect()
    kept = found.where("bookmark is not null").drop("_exact", "_exact_since_ms")
    return QueueAsOf(kept, {row["_shard"]: row["_exact_since_ms"] for row in shards}, found)


def _read_task(batches: Iterable[Any], entity: str, at_ms: int, acts: bool) -> Iterator[Any]:
    """Yield the rows of one task: one for each shard whose journal it reads, and one for each of its messages."""
    histories: dict[int, ShardHistory] = {}
    for batch in batches:
        for partition, offset, stored_ms, key, value, epoch in zip(*batch.to_pydict().values(), strict=True):
            history = histories.get(partition)
            if history is None:
                history = histories[partition] = ShardHistory(entity, at_ms, acts)
            history.take(offset, stored_ms, key, value, epoch)
    for shard, history in histories.items():
        yield from _rows(_read_shard(shard, history))


def _read_shard(shard: int, history: ShardHistory) -> Iterator[tuple[Any, ...]]:
    yield shard, history.exact, history.exact_since_ms, 0, *([None] * 10)
    if not history.exact:
        return
    for at, one in enumerate(history.messages()):
        mark = Bookmark.parse(one.bookmark)
        place = one.bookmark, mark.topic, mark.partition, mark.offset
        counts = one.delivery_count, one.cancel_count
        yield shard, True, None, at, *place, one.state, one.expires_at_ms, *counts, one.subscription, one.until_ms


def _rows(rows: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield rows as Arrow batches."""
    import pyarrow as pa  # on the executors

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
    fields = [column.split() for column in f"{_SHARD}, {COLUMNS}".split(", ")]
    schema = pa.schema([(name, types[kind]) for name, kind in fields])
    some: list[tuple[Any, ...]] = []
    for row in rows:
        some.append(row)
        if len(some) == _AT_ONCE:
            yield _batch(some, schema)
            some = []
    yield _batch(some, schema)


def _batch(rows: list[tuple[Any, ...]], schema: Any) -> Any:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )
