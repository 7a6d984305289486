"""Assignor: a partition stays where it is as far as it can, and one that goes to another worker is nobody's in between.

Shards go on working while the group is balanced anew (C90). So a worker that is to have a partition must not get it
while another one that is there works on it: it gets it at the next rebalance, which begins once the other has given it
up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP


class SteadyAssignor(PartitionAssignor):
    """Faust's, for workers whose shards go on.

    Attributes:
        withheld: whether this worker, as the leader of the group, has kept something from who is to have it.
    """

    withheld = False

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        self._owned = {member: self._owned_by(one) for member, one in member_metadata.items()}
        return super()._perform_assignment(cluster, member_metadata)

    def _owned_by(self, metadata: Any) -> set[TP]:
        topics = set(metadata.subscription)
        return {tp for tp in self._get_client_metadata(metadata).assignment.active_tps if tp.topic in topics}

    def _global_table_standby_assignments(self, assignments: Any, partitions_by_topic: Mapping[str, int]) -> Any:
        leave(assignments, self._owned)
        self.withheld = withhold(assignments, self._owned)
        return super()._global_table_standby_assignments(assignments, partitions_by_topic)


def leave(assignments: Mapping[str, ClientAssignment], owned: Mapping[str, set[TP]]) -> None:
    """Give partitions back to who had them, where each member then has as many as it would have had or another had.

    With three partitions and two members, Faust's choice depends on the order in which they join: it would move some.
    Topics that are assigned alike are read together, so they move together.

    Args:
        assignments: by member; changed.
        owned: what each member that is there has.
    """
    alike: dict[frozenset[tuple[str, tuple[int, ...]]], list[str]] = {}
    for topic in {topic for assignment in assignments.values() for topic in assignment.actives}:
        readers = ((member, one.actives[topic]) for member, one in assignments.items() if topic in one.actives)
        alike.setdefault(frozenset((member, tuple(sorted(had))) for member, had in readers), []).append(topic)
    for shares, topics in alike.items():
        members = {member: set(partitions) for member, partitions in shares}
        moved = False
        for member, partition in [(member, one) for member, partitions in shares for one in partitions]:
            owners = [one for one in members if any(TP(topic, partition) in owned[one] for topic in topics)]
            if owners and member not in owners and len(members[owners[0]]) < len(members[member]):
                members[member].discard(partition)
                members[owners[0]].add(partition)
                moved = True
        if moved:
            for topic in topics:
                for member, partitions in members.items():
                    assignments[member].actives[topic] = sorted(partitions)


def withhold(assignments: Mapping[str, ClientAssignment], owned: Mapping[str, set[TP]]) -> bool:
    """Take out of assignments what others have still; whether there was something.

    Args:
        assignments: by member; changed.
        owned: what each member that is there has.
    """
    owners: dict[TP, set[str]] = {}
    for member, tps in owned.items():
        for tp in tps:
            owners.setdefault(tp, set()).add(member)
    withheld = False
    for member, assignment in assignments.items():
        for topic, partitions in assignment.actives.items():
            given = [one for one in partitions if member in owners.get(TP(topic, one), {member})]
            if len(given) < len(partitions):
                assignment.actives[topic] = given
                withheld = True
    return withheld
