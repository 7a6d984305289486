"""A difference between a cluster and what a configuration needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lapse.runtime.topics.access import Grant
from lapse.runtime.topics.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the cluster and what is needed.

    Attributes:
        topic: name of the topic.
        what: what is wrong, for people.
        create: the topic to create, if that mends it; None otherwise.
        alter: settings to change, if that mends it; empty otherwise. A worker can serve without that.
        grants: rights to grant, if that mends it; empty otherwise. A worker can serve without that (X4).
        bars: entities that cannot be served because of it. All others can (C52).
    """

    topic: str
    what: str
    create: Wanted | None = None
    alter: Mapping[str, str] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    bars: tuple[str, ...] = ()

    @property
    def mended(self) -> str:
        """What `lapse apply` does about it; empty if a person must decide."""
        return "creating it" if self.create else "changing it" if self.alter else "granting it" if self.grants else ""

    @property
    def facts(self) -> dict[str, object]:
        """The difference as commands print it in JSON."""
        created = self.create
        return {
            "topic": self.topic,
            "what": self.what,
            "create": None if created is None else {"partitions": created.partitions, "config": created.config},
            "alter": dict(self.alter),
            "grant": [{"principal": grant.principal, "operation": grant.operation} for grant in self.grants],
        }
