"""The rights on topics that users need, and the check which of them the cluster has granted (X4)."""

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
_SETTLE_S: Final = 5.0  # a broker confirms a right some time before it lists it
_AGAIN_S: Final = 0.05
_EVERY: Final = "*"
_AUTHORIZER: Final = "authorizer.class.name"


class Authorizer(StrEnum):
    """Whether the cluster restricts access to topics by rights."""

    OFF = "off"
    ON = "on"
    UNKNOWN = "unknown"  # lapse has no right to ask


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A right on a topic.

    Attributes:
        topic: name of the topic.
        principal: the user, by Kafka's name.
        operation: the permitted operation, by Kafka's name.
    """

    topic: str
    principal: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation.capitalize()} for {self.principal}"


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster's answer about rights on topics.

    Attributes:
        authorizer: whether there is one.
        bindings: the ACLs that permit something, as Kafka returns them.
    """

    authorizer: Authorizer = Authorizer.UNKNOWN
    bindings: tuple[Any, ...] = field(default=(), repr=False)

    def has(self, grant: Grant) -> bool:
        """Return whether a right is granted, by topic name, by prefix or for all topics."""
        return any(_covers(binding, grant) for binding in self.bindings)

    def lacks(self, wanted: Iterable[Grant]) -> list[Grant]:
        """Return the rights that are not granted; none if there is no authorizer, or if it is unknown."""
        return [grant for grant in wanted if not self.has(grant)] if self.authorizer is Authorizer.ON else []


def look(admin: AdminClient) -> Access:
    """Ask a cluster for the rights on its topics.

    The broker's configuration says whether there is an authorizer. librdkafka's answer does not: without an authorizer,
    and without the right to see ACLs, it returns no rights and no error.

    Raises:
        KafkaException: the cluster does not answer.
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
    any_text: Any = None  # the types of confluent_kafka do not allow None
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
    """Grant rights, from every host, and wait up to 5 s until the cluster lists them.

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
    """Revoke all rights on topics with these names. Rights by prefix or on all topics stay.

    Raises:
        KafkaException: the cluster refused, for another reason than that it has no authorizer.
    """
    anything: Any = None  # the types of confluent_kafka do not allow None
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
