"""Checks whether workers keep up: records that were in the log some seconds ago must be processed by now."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition

from lapse.config import Config
from lapse.doctor.finding import Finding, fine, warning
from lapse.doctor.transactions import ends_of
from lapse.runtime.topics.permission import may_join
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.reading.count_text import count_text

_PATIENCE_S: Final = 3.0
"""How long records may stay unprocessed before the workers count as lagging, s."""

_LOOK_EVERY_S: Final = 0.5

_BEGUN_S: Final = 2.0
"""How long a worker may need after its start until its first commit, and a group until it has a coordinator, s."""

_ANSWERS_S: Final = 5.0

_MARKERS: Final = 10
"""Transaction markers have offsets without being records. So few missing offsets are no lag."""


def check_lag(config: Config, connection: Connection) -> Iterator[Finding]:
    """Compare the position of the group of workers with the ends of the logs.

    Args:
        config: names the group, and queues that leave records in the log on purpose.
        connection: the cluster.
    """
    if not may_join(connection.admin(), config.lapse.app_id):
        return  # another check reports it; librdkafka would wait for the group's coordinator
    # `list_consumer_group_offsets` would end the process (a segmentation fault in librdkafka) while the group's
    # coordinator is not ready, as on a new cluster. A consumer without a subscription joins no group.
    reader = connection.consumer(**{"group.id": config.lapse.app_id})
    try:
        tps = [TopicPartition(name, at) for name, count in connection.partitions().items() for at in range(count)]
        ends = ends_of(
            connection.admin(), finished := _first_committed_offsets(reader, tps), IsolationLevel.READ_COMMITTED
        )
        behind = _unprocessed_counts(ends, _committed_offsets(reader, list(finished)))
        late = time.monotonic() + _PATIENCE_S
        while behind and time.monotonic() < late:
            time.sleep(_LOOK_EVERY_S)
            behind = _unprocessed_counts(ends, _committed_offsets(reader, list(finished)))
    except (KafkaException, LapseError, TimeoutError):
        return  # other checks report a missing right or answer
    finally:
        reader.close()
    if not ends:
        return
    lagging = {topic: count for topic, count in behind.items() if not _is_left(topic, config)}
    for topic, count in sorted(lagging.items()):
        text = f"the workers have not read {count_text(count, 'record')} of topic {topic} within {_PATIENCE_S:.0f} s"
        yield warning(
            "lag", text, "Is a worker busy, or ended? See its log and `lapse top`; more workers share the shards"
        )
    if not lagging:
        yield fine("lag", f"the workers have read all records of {count_text(len({tp.topic for tp in ends}), 'topic')}")


def _first_committed_offsets(reader: Consumer, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the result of `_committed_offsets`, as soon as there is one."""
    late = time.monotonic() + _BEGUN_S
    while time.monotonic() < late:
        with suppress(KafkaException):
            if found := _committed_offsets(reader, tps):
                return found
        time.sleep(_LOOK_EVERY_S)
    return _committed_offsets(reader, tps)


def _committed_offsets(reader: Consumer, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets before which everything is durable, for partitions with a committed offset."""
    found = reader.committed(tps, timeout=_ANSWERS_S) if tps else []
    return {TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0}


def _unprocessed_counts(ends: Mapping[TopicPartition, int], finished: Mapping[TopicPartition, int]) -> Counter[str]:
    """Return how many records of each topic are not processed."""
    found: Counter[str] = Counter()
    for tp, end in ends.items():
        missing = end - finished.get(tp, end)
        if missing > _MARKERS:
            found[tp.topic] += missing
    return found


def _is_left(topic: str, config: Config) -> bool:
    """Return whether a queue of this topic leaves records in the log beyond its target depth."""
    return any(
        topic in (queue.topics or [name]) or (queue.topic_pattern and re.fullmatch(queue.topic_pattern, topic))
        for name, queue in config.queue.items()
        if queue.target_queue_depth
    )
