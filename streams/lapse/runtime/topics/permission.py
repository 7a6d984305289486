"""Our own permissions on the cluster: the operations on topics, and the group, that a worker needs.

Brokers tell every client what it may do itself, so this needs no right to see ACLs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AclOperation,
    AdminClient,
)

_PATIENCE_S: Final = 120.0
"""How long librdkafka waits for an answer, s. A broker that has created thousands of topics describes them slowly."""
_COORDINATOR_S: Final = 2.0
_MOST_AT_ONCE: Final = 2_000
_FIRST: Final = 20
"""How many topics to ask about first. If we may do everything with these, we are an administrator, and the others are
not asked about."""


def hidden(admin: AdminClient, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Find which unlisted topics the brokers do not let us see.

    Returns:
        What is lacking, by topic: `("Describe",)`.
    """
    return {name: ("Describe",) for name, found in _asked(admin, topics) if found is None}


def lacking(admin: AdminClient, needed: Mapping[str, Collection[str]]) -> tuple[dict[str, tuple[str, ...]], bool]:
    """Find which operations on existing topics a worker lacks.

    Args:
        admin: asks the brokers.
        needed: the operations that it needs, by topic, such as `("Read", "Write")`.

    Returns:
        The lacking operations by topic, such as `("Read", "Write")`, for topics with any. Whether we lack any
            operation at all, which shows that there is an authorizer, and that we are not its super user.
    """
    found: dict[str, tuple[str, ...]] = {}
    names = list(needed)
    for part in (names[:_FIRST], names[_FIRST:]):
        restricted = False
        for name, permitted in _asked(admin, part):
            if permitted is None:
                continue
            restricted |= AclOperation.ALTER not in permitted
            if less := tuple(one for one in needed[name] if AclOperation[one.upper()] not in permitted):
                found[name] = less
        if not restricted:
            return found, bool(found)
    return found, True


def may_join(admin: AdminClient, group: str) -> bool:
    """Return whether we may join a consumer group; True if the cluster does not answer soon.

    The first group of a cluster must wait for its coordinator, which may take seconds.
    """
    (asked,) = admin.describe_consumer_groups(
        [group], include_authorized_operations=True, request_timeout=_COORDINATOR_S
    ).values()
    try:
        permitted = asked.result(2 * _COORDINATOR_S).authorized_operations
    except TimeoutError:
        return True
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED)
    return not permitted or AclOperation.READ in permitted


def _asked(admin: AdminClient, topics: Iterable[str]) -> Iterable[tuple[str, frozenset[AclOperation] | None]]:
    """Yield what we may do with each existing topic; None if we may not even see it."""
    names = sorted(topics)
    for first in range(0, len(names), _MOST_AT_ONCE):
        batch = TopicCollection(names[first : first + _MOST_AT_ONCE])
        answers = admin.describe_topics(batch, include_authorized_operations=True, request_timeout=_PATIENCE_S)
        for name, future in answers.items():
            try:
                permitted = future.result().authorized_operations
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    yield name, None
            else:
                yield name, frozenset(permitted or AclOperation)
