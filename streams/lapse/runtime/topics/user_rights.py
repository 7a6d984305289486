"""The rights on Kafka's topics that users need, and those that workers need on the same topics (X4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from lapse.config import Config
from lapse.core.entitlement import Right
from lapse.protocol import topic as names
from lapse.runtime.topics.access import Grant
from lapse.runtime.topics.wanted import Role

_OWN: Final = ("READ", "WRITE", "DELETE")
"""The operations of workers on a topic of lapse's own."""


WRITTEN_BESIDE: Final = frozenset({Role.FORWARDED, Role.DEAD_LETTERS})
"""What workers write to topics that may be underlying topics of other entities, too."""


def user_grants(config: Config, sources: Mapping[str, Sequence[str]], written: Collection[str] = ()) -> list[Grant]:
    """Return the rights on topics that users need, and those that workers need on the same topics.

    With a right for one principal on a topic, Kafka denies the topic to all others. So the workers must be named as
    well.

    Args:
        config: the configuration.
        sources: the underlying topics of each entity.
        written: topics that workers write to for other entities: targets of forwarding, and for dead letters.
    """
    return list(dict.fromkeys(_grants(config, sources, written)))


def _grants(config: Config, sources: Mapping[str, Sequence[str]], written: Collection[str]) -> Iterator[Grant]:
    workers = _workers(config)
    for name, topics in sources.items():
        for user, entitlement in config.entitled_users(name).items():
            principal = config.users[user].principal
            if principal is None:
                continue
            yield from _commanding(name, user, principal, workers)
            for topic in topics if Right.PUBLISH in entitlement.rights else ():
                yield Grant(topic, principal, "WRITE")
                if workers is not None:
                    yield Grant(topic, workers, "READ")
                    if topic in written:
                        yield Grant(topic, workers, "WRITE")
    if config.lapse.definitions == "topic":
        definer = names.definer(config.lapse.app_id)
        for user in config.creators():
            yield from _commanding(definer, user, config.users[user].principal, workers)


def _workers(config: Config) -> str | None:
    """Return the principal of the workers; None if the configuration does not name it."""
    security = config.security
    if security.principal is None and security.protocol.startswith("SASL") and security.username:
        return f"User:{security.username}"
    return security.principal


def _commanding(name: str, user: str, principal: str | None, workers: str | None) -> Iterator[Grant]:
    """Yield the rights that a user needs to give commands and read the answers, and those of the workers."""
    if principal is None:
        return
    commands, deliveries = names.commands(name), names.deliveries(name, user)
    yield Grant(commands, principal, "WRITE")
    yield Grant(deliveries, principal, "READ")
    if workers is not None:
        for topic in (commands, deliveries):
            for operation in _OWN:
                yield Grant(topic, workers, operation)
