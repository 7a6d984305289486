"""The coordinator of a consumer in a group: like aiokafka's, but the group's leader goes on fetching (C90)."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.consumer import consumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.protocol import ConsumerProtocol

from lapse.runtime.kafka.metadata import ensure_group_metadata


class SteadyCoordinator(GroupCoordinator):
    """A coordinator that computes the assignment of all members in a thread, and waits for metadata of new topics only.

    For a thousand topics the assignment takes 30 ms and more, and metadata of all topics ten times as long. The loop of
    the coordinator also takes in what is fetched.
    """

    _has_led = False
    """Whether this member has computed an assignment before."""

    def _do_commit_offsets(self, assignment: Any, offsets: Any) -> asyncio.Task[None]:
        """Commit in a task. Its error counts as read, because nobody waits for a commit that was given up.

        aiokafka shields the commit from that. Python would log its error later, with a traceback.
        """
        task: asyncio.Task[None] = asyncio.ensure_future(super()._do_commit_offsets(assignment, offsets))
        task.add_done_callback(_read_error)
        return task

    def start_commit_offsets_refresh_task(self, assignment: Any) -> None:
        """Ask for committed offsets, unless the topics changed while the member joined: then it joins again.

        There is no assignment then. aiokafka's task would fail on that, and Python log it with a traceback.
        """
        if assignment is not None:
            super().start_commit_offsets_refresh_task(assignment)

    async def _perform_assignment(self, response: Any) -> Any:
        assignor = self._lookup_assignor(response.group_protocol)
        assert assignor, f"Invalid assignment protocol: {response.group_protocol}"
        members = {member[0]: ConsumerProtocol.METADATA.decode(member[-1]) for member in response.members}
        self._group_subscription = topics = {topic for member in members.values() for topic in member.subscription}
        if self._has_led:  # it has asked for the topics to which it subscribes itself
            await ensure_group_metadata(self._client, topics, topics - self._subscription.subscription.topics)
        else:
            self._client.set_topics(topics)
            await self._client._maybe_wait_metadata()
            self._has_led = True
        loop = asyncio.get_running_loop()
        while True:
            self._metadata_snapshot = snapshot = self._get_metadata_snapshot()
            assignments = await loop.run_in_executor(None, assignor.assign, self._cluster, members)
            if self._get_metadata_snapshot() == snapshot:
                return assignments
            # Partitions came meanwhile. The request to join again that they caused is forgotten once this returns.


def _read_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


# This applies to all consumers of the process, because the class cannot be injected.
consumer.GroupCoordinator = SteadyCoordinator
