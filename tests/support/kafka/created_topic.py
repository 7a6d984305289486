"""Creates topics for tests, and changes their settings."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lapse.topic_creation import NewTopic
from support.kafka.log import until


def create(admin: AdminClient, *topics: NewTopic) -> None:
    """Create topics, and wait until a broker lists them: it learns of them after the controller has answered.

    Try again while the deletion of a topic with the same name is under way.
    """
    left = {topic.topic: topic for topic in topics}

    def created() -> bool:
        for name, future in admin.create_topics(list(left.values())).items():
            failure = str(future.exception(30) or "")
            assert not failure or "already exists" in failure or "marked for deletion" in failure, failure
            if not failure:
                del left[name]
        return not left

    until(created, f"{', '.join(left)} created")
    for topic in topics:
        until(lambda name=topic.topic: _is_listed(admin, name), f"{topic.topic} listed")


def _is_listed(admin: AdminClient, name: str) -> bool:
    """Return whether a broker lists a topic. To be told of all topics would take it longer."""
    return admin.list_topics(name, timeout=15).topics[name].error is None


def take_at_most(servers: str, topic: str, most_bytes: int) -> None:
    """Make a topic refuse records larger than `most_bytes`."""
    _set(servers, topic, "max.message.bytes", str(most_bytes))


def stamp_by_producers(servers: str, topic: str) -> None:
    """Have a topic's records bear the instants that their producers give them, and stay, however long ago these are.

    A broker looks for records beyond their retention half a minute after its start, and every five minutes then.
    """
    _set(servers, topic, "retention.ms", "-1")
    _set(servers, topic, "message.timestamp.type", "CreateTime")


def _set(servers: str, topic: str, option: str, value: str) -> None:
    changed = ConfigResource(ResourceType.TOPIC, topic)
    changed.add_incremental_config(ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([changed])[changed].result(15)
