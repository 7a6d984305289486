"""The cleanup.policy of lapse's own topics: only state is compacted (D4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.retention import Retention
from lapse.runtime.topics.wanted import Role, Wanted

POLICY: Final = "cleanup.policy"

OWN: Final = frozenset({Role.COMMANDS, Role.DELIVERIES, Role.EVENTS, Role.CHANGELOG, Role.SOW, Role.DEFINER})
"""Topics that lapse creates and that nobody else writes."""

_LOSES: Final = {
    "compact": "Kafka would delete state that is still needed",
    "delete": "Kafka would refuse records without a key, and forget those of a key but the last",
}


def wrong_policies(wanted: Iterable[Wanted], retentions: Mapping[str, Retention]) -> list[Difference]:
    """Return the topics whose policy was changed, as far as their settings are known."""
    found: list[Difference] = []
    for one in wanted:
        retention = retentions.get(one.name)
        needed = one.config.get(POLICY, "delete")
        if retention is not None and one.role in OWN and retention.policy != needed:
            what = f"{POLICY} is {retention.policy} instead of {needed}: {_LOSES[needed]}"
            what += f"; {one.purpose}"
            found.append(Difference(one.name, what, alter={POLICY: needed}))
    return found
