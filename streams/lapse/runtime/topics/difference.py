"""One respect in which a cluster differs from what a configuration needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lapse.runtime.topics.access import Grant
from lapse.runtime.topics.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Difference:
    """One respect in which the cluster differs.

    Attributes:
        topic: which topic.
        what: what is wrong, for people.
        create: the topic to be created, if that mends it; None = it does not.
        alter: settings to be changed, if that mends it; empty = it does not. A worker can do without.
        grants: rights to be given, if that mends it; empty = it does not. A worker can do without (X4).
        bars: entities that cannot be served because of it; the others are (C52).
    """

    topic: str
    what: str
    create: Wanted | None = None
    alter: Mapping[str, str] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    bars: tuple[str, ...] = ()

    @property
    def mended(self) -> str:
        """What `lapse apply` does about it; empty = a person has to decide."""
        return "creating it" if self.create else "changing it" if self.alter else "granting it" if self.grants else ""
