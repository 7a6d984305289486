"""Forces Kafka to compact topics, and to drop replaced records and tombstones, within seconds."""

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

BROKER = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "1000"}
"""Settings of a broker that looks for segments to compact at once."""

_TOPIC = {
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
}


def compact_eagerly(servers: str, *topics: str, tombstones_ms: int = 0) -> None:
    """Roll the topics' segments every half a second, and compact older ones; tombstones stay for `tombstones_ms`.

    From then on the brokers look for segments to compact every second instead of every 15.
    """
    settings = {**_TOPIC, "delete.retention.ms": str(tombstones_ms)}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in topics]
    admin = AdminClient({"bootstrap.servers": servers})
    often = ConfigEntry("log.cleaner.backoff.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resources += [
        ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[often])
        for number in admin.list_topics(timeout=15).brokers
    ]
    for future in admin.incremental_alter_configs(resources).values():
        future.result(15)
