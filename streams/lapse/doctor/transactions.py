"""Checks whether open transactions hide records: workers and clients read no further than the first open one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from lapse.config import Config
from lapse.doctor.finding import Finding, warning
from lapse.protocol import topic as names
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

_PATIENCE_S: Final = 2.0
"""How long a transaction may stay open before it is reported, s. Most end within milliseconds."""

_LOOK_EVERY_S: Final = 0.2
_ANSWERS_S: Final = 5.0


def check_transactions(config: Config, connection: Connection) -> Iterator[Finding]:
    """Yield a warning for each partition with a transaction that stays open; nothing if there is none.

    Args:
        config: names the topics that are read.
        connection: the cluster.
    """
    admin = connection.admin()
    try:
        tps = [
            TopicPartition(name, at)
            for name, count in connection.partitions().items()
            if name.startswith(names.PREFIX) or config.readers(name)
            for at in range(count)
        ]
        ends = ends_of(admin, tps, IsolationLevel.READ_UNCOMMITTED)
        begun = _open(admin, ends, tps)
        late = time.monotonic() + _PATIENCE_S
        stay = begun
        while stay and time.monotonic() < late:
            time.sleep(_LOOK_EVERY_S)
            now = _open(admin, ends, list(stay))
            stay = {tp: first for tp, first in stay.items() if now.get(tp) == first}
    except (KafkaException, LapseError, TimeoutError):
        return  # other checks report a missing right or answer
    for tp, first in sorted(stay.items(), key=lambda one: (one[0].topic, one[0].partition)):
        yield warning(
            "transactions",
            f"{tp.topic}, partition {tp.partition}: {ends[tp] - first:,} records from offset {first} on are behind a "
            "transaction that is neither committed nor aborted. Nobody reads them before it ends",
            _REMEDY.format(topic=tp.topic, partition=tp.partition, offset=first),
        )


_REMEDY: Final = (
    "Kafka ends it when its program does, or after its transaction.timeout.ms. If it stays longer, Kafka has lost its "
    "end, because the partition's only broker died at that moment: run `lapse apply` for definitions; otherwise "
    "kafka-transactions.sh abort --topic {topic} --partition {partition} --start-offset {offset}"
)


def _open(
    admin: AdminClient, ends: dict[TopicPartition, int], tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return where the first open transaction begins, of partitions that have one before the given ends."""
    stable = ends_of(admin, tps, IsolationLevel.READ_COMMITTED)
    return {tp: first for tp, first in stable.items() if first < ends.get(tp, 0)}


def ends_of(admin: AdminClient, tps: Iterable[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, int]:
    """Return where the logs end now, without partitions that no longer exist.

    Args:
        admin: the cluster.
        tps: the partitions.
        isolation: whether records of open transactions count.
    """
    pending = admin.list_offsets(
        {tp: OffsetSpec.latest() for tp in tps},  # type: ignore[no-untyped-call]
        isolation_level=isolation,
        request_timeout=_ANSWERS_S,
    )
    found = {}
    for tp, answer in pending.items():
        try:
            found[tp] = answer.result(_ANSWERS_S).offset
        except KafkaException:
            continue
    return found
