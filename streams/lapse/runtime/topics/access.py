"""Access: the rights on topics that users need, and which of them the cluster has (X4)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

_PATIENCE_S: Final = 60.0
_SETTLE_S: Final = 5.0  # a broker confirms a right before it lists it
_AGAIN_S: Final = 0.05
_EVERY: Final = "*"
_AUTHORIZER: Final = "authorizer.class.name"


class Authorizer(StrEnum):
    """Whether the cluster keeps topics from those who have no right to them."""

    OFF = "off"
    ON = "on"
    UNKNOWN = "unknown"  # lapse may not ask


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A right on a topic.

    Attributes:
        topic: which topic.
        principal: whose it is, as Kafka calls them.
        operation: what they may do, by Kafka's name for it.
    """

    topic: str
    principal: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation.capitalize()} for {self.principal}"


@dataclass(frozen=True, slots=True)
class Access:
    """What a cluster says of rights on topics.

    Attributes:
        authorizer: whether there is one.
        bindings: what it allows, as Kafka tells it.
    """

    authorizer: Authorizer = Authorizer.UNKNOWN
    bindings: tuple[Any, ...] = field(default=(), repr=False)

    def has(self, grant: Grant) -> bool:
        """Whether a right is there, by name, by prefix or for all topics."""
        return any(_covers(binding, grant) for binding in self.bindings)

    def lacks(self, wanted: Iterable[Grant]) -> list[Grant]:
        """Of some rights those that are not there; none where there is no authorizer, or none that would say."""
        return [grant for grant in wanted if not self.has(grant)] if self.authorizer is Authorizer.ON else []


def look(admin: AdminClient) -> Access:
    """Ask a cluster for the rights on its topics.

    Whether there is an authorizer is asked of a broker's configuration: to somebody who may not see rights, and where
    there is no authorizer, librdkafka tells of no rights and of no error.

    Raises:
        KafkaException: it does not answer.
    """
    broker = ConfigResource(ResourceType.BROKER, str(min(admin.list_topics(timeout=_PATIENCE_S).brokers)))
    (asked,) = admin.describe_configs([broker], request_timeout=_PATIENCE_S).values()
    try:
        setting = asked.result().get(_AUTHORIZER)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return Access(Authorizer.UNKNOWN)
        raise
    if setting is None or not setting.value:
        return Access(Authorizer.OFF)
    any_text: Any = None  # what its types do not know
    every = AclBindingFilter(
        ResourceType.TOPIC,
        any_text,
        ResourcePatternType.ANY,
        any_text,
        any_text,
        AclOperation.ANY,
        AclPermissionType.ALLOW,
    )
    return Access(Authorizer.ON, tuple(admin.describe_acls(every, request_timeout=_PATIENCE_S).result()))


def give(admin: AdminClient, grants: Iterable[Grant]) -> None:
    """Give rights, from every host, and wait up to 5 s until the cluster lists them.

    Raises:
        KafkaException: the cluster refused one.
    """
    wanted = list(grants)
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            grant.topic,
            ResourcePatternType.LITERAL,
            grant.principal,
            _EVERY,
            AclOperation[grant.operation],
            AclPermissionType.ALLOW,
        )
        for grant in wanted
    ]
    for future in (admin.create_acls(bindings, request_timeout=_PATIENCE_S) if bindings else {}).values():
        future.result()
    end_s = time.monotonic() + _SETTLE_S
    while wanted and look(admin).lacks(wanted) and time.monotonic() < end_s:
        time.sleep(_AGAIN_S)


def take(admin: AdminClient, topics: Iterable[str]) -> None:
    """Take away all rights on topics of these names; rights by prefix or on all topics stay.

    Raises:
        KafkaException: the cluster refused; not where it has no authorizer.
    """
    anything: Any = None  # what its types do not know
    of_each = [
        AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            anything,
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for topic in topics
    ]
    for future in (admin.delete_acls(of_each) if of_each else {}).values():
        try:
            future.result(_PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.SECURITY_DISABLED:
                raise


def _covers(binding: Any, grant: Grant) -> bool:
    if binding.principal not in (grant.principal, "User:*") or binding.host != _EVERY:
        return False
    if binding.operation not in (AclOperation[grant.operation], AclOperation.ALL):
        return False
    if binding.resource_pattern_type == ResourcePatternType.PREFIXED:
        return grant.topic.startswith(binding.name)
    return binding.name in (grant.topic, _EVERY)
