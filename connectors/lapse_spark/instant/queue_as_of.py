"""A queue as of an instant: the messages that it had then, from the journals of its shards alone (D7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.history import ShardHistory
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.header import EPOCH
from lapse_client.reading.instant import shown
from lapse_spark.records import header

COLUMNS: Final = (
    "bookmark string, topic string, partition int, offset bigint, state string, expires_at_ms bigint, "
    "delivery_count int, cancel_count int, subscription string, until_ms bigint"
)
"""One row per message; each column is as `lapse queue peek --json` has it, the bookmark whole and in its parts."""

_SHARD: Final = "_shard int, _exact boolean, _exact_since_ms bigint, _at bigint"
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueueAsOf:
    """A queue as of an instant.

    Attributes:
        messages: `COLUMNS`, and `_shard` and `_at` for their order.
        inexact: shards of which it cannot be told, each with the instant from which on it can; ms since the epoch.
        persisted: what was read, for `messages`.
    """

    messages: DataFrame
    inexact: dict[int, int]
    persisted: DataFrame

    def release(self) -> None:
        """Let go of what was read."""
        self.persisted.unpersist()

    @property
    def sentence(self) -> str:
        """What is missing, in words; empty when nothing is."""
        if not self.inexact:
            return ""
        shards = ", ".join(str(shard) for shard in sorted(self.inexact))
        since = shown(max(self.inexact.values()))
        return (
            f"Kafka's compaction has removed what shard {shards} had at this instant, and none of its messages are "
            f"told. Ask for {since} or later."
        )


def journal(entity: str, app_id: str | None, there: set[str]) -> str | None:
    """The topic of a queue's journal; None if the cluster has none.

    Args:
        entity: the queue.
        app_id: of its deployment; None = whichever has it.
        there: the cluster's topics.

    Raises:
        ValueError: several deployments have an entity of this name.
    """
    if app_id is not None:
        name = topic.changelog(app_id, entity)
        return name if name in there else None
    # `app-orders-changelog` may be that of `orders` or, of another deployment, of `app-orders`.
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
    """The messages of a queue as of an instant.

    Args:
        records: the journal (`schema.RAW`), each of its partitions in one piece and in order, as `read.records` gives
            it with the option `minPartitions` of 1.
        entity: the queue.
        at_ms: the instant, ms since the epoch.
        acts: whether the queue acted on lifetimes then.
    """
    needed = records.select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("at_ms"),
        "key",
        "value",
        header.value(header.newest_first(F.col("headers")), EPOCH).alias("epoch"),
    )

    def told(batches: Iterable[Any]) -> Iterable[Any]:
        return _told(batches, entity, at_ms, acts)

    found = needed.mapInArrow(told, f"{_SHARD}, {COLUMNS}").persist()
    shards = found.where("bookmark is null and not _exact").select("_shard", "_exact_since_ms").collect()
    kept = found.where("bookmark is not null").drop("_exact", "_exact_since_ms")
    return QueueAsOf(kept, {row["_shard"]: row["_exact_since_ms"] for row in shards}, found)


def _told(batches: Iterable[Any], entity: str, at_ms: int, acts: bool) -> Iterator[Any]:
    """What one task says of the shards whose journals it reads: a row for each, and one for each of its messages."""
    histories: dict[int, ShardHistory] = {}
    for batch in batches:
        for partition, offset, stored_ms, key, value, epoch in zip(*batch.to_pydict().values(), strict=True):
            history = histories.get(partition)
            if history is None:
                history = histories[partition] = ShardHistory(entity, at_ms, acts)
            history.take(offset, stored_ms, key, value, epoch)
    for shard, history in histories.items():
        yield from _rows(_of_shard(shard, history))


def _of_shard(shard: int, history: ShardHistory) -> Iterator[tuple[Any, ...]]:
    yield shard, history.exact, history.exact_since_ms, 0, *([None] * 10)
    if not history.exact:
        return
    for at, one in enumerate(history.messages()):
        mark = Bookmark.parse(one.bookmark)
        place = one.bookmark, mark.topic, mark.partition, mark.offset
        counts = one.delivery_count, one.cancel_count
        yield shard, True, None, at, *place, one.state, one.expires_at_ms, *counts, one.subscription, one.until_ms


def _rows(rows: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """The rows as Arrow wants them, some at a time."""
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
