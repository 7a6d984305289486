"""The assignor: every worker gets its share, and two workers never have the same shard.

Shards go on working during a rebalance (C90). So a worker must not get a partition while another member still works on
it. It gets the partition at the next rebalance, which begins once the other member has given it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP

from lapse.runtime.kafka.group.spread import spread


class SteadyAssignor(PartitionAssignor):
    """Faust's assignor, for shards that go on in rebalances, and entities assigned independently (see `spread`).

    Attributes:
        withheld: whether this worker, as the group's leader, has withheld a partition from its next owner.
        members: how many members the group has, as its leader knows it; 0 at another member.
    """

    withheld = False
    members = 0
    _counted = 0

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        self._counted = len(member_metadata)
        self._owned = {member: self._owned_by(one) for member, one in member_metadata.items()}
        return super()._perform_assignment(cluster, member_metadata)

    def _owned_by(self, metadata: Any) -> set[TP]:
        topics = set(metadata.subscription)
        return {tp for tp in super()._get_client_metadata(metadata).assignment.active_tps if tp.topic in topics}

    @classmethod
    def _get_client_metadata(cls, metadata: Any) -> Any:
        """Do the same as Faust's, without the member's partitions: Faust assumes that all topics are assigned alike."""
        known = super()._get_client_metadata(metadata)
        known.assignment = ClientAssignment(actives={}, standbys={})
        return known

    def _get_changelog_distribution(self, assignments: Any) -> Any:
        """Return nothing: the distributions of all topics are for web servers that route requests to each other."""
        return {}

    def _get_external_topic_distribution(self, assignments: Any) -> Any:
        """Return nothing, as above."""
        return {}

    def _protocol_assignments(
        self, assignments: Any, cl_distribution: Any, tp_distribution: Any, topic_groups: Any
    ) -> Any:
        """Do the same as Faust's method, without copies and unused fields: fetches wait for it (C90)."""
        return {
            member: ConsumerProtocolMemberAssignment(
                self.version,
                sorted(assignment.actives.items()),
                self._compress(
                    ClientMetadata(
                        assignment=ClientAssignment(actives=assignment.actives, standbys={}),
                        url=self._member_urls[member],
                        changelog_distribution=cl_distribution,
                        external_topic_distribution=tp_distribution,
                        topic_groups={},
                    ).dumps()
                ),
            )
            for member, assignment in assignments.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        """Note what this member has from now on, like Faust's, without copies and checks."""
        self._assignment = cast("Any", ClientMetadata.loads(self._decompress(assignment.user_data))).assignment
        self.members, self._counted = self._counted, 0
        self._active_tps, self._standby_tps = self._assignment.active_tps, self._assignment.standby_tps

    def _global_table_standby_assignments(self, assignments: Any, partitions_by_topic: Mapping[str, int]) -> Any:
        spread(assignments, self._owned, (entity.topics_read() for entity in cast("Any", self.app).entities.values()))
        self.withheld = withhold(assignments, self._owned)
        return super()._global_table_standby_assignments(assignments, partitions_by_topic)


def withhold(assignments: Mapping[str, ClientAssignment], owned: Mapping[str, set[TP]]) -> bool:
    """Remove from assignments what other members still have; return whether there was anything.

    Args:
        assignments: by member; changed in place.
        owned: the partitions of each current member.
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
