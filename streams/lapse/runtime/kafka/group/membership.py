"""Membership: a restarted worker removes its dead predecessor from the group.

After a crash Kafka waits for `session_timeout` before it reassigns the dead member's shards, and nobody serves them
meanwhile. Mostly the same worker starts again, with the same data directory, and it knows that the member is dead. So
it leaves the group in that member's name. If this shortcut fails, Kafka waits.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
from pathlib import Path
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaError, UnknownMemberIdError
from aiokafka.protocol.group import LeaveGroupRequest

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 5.0
_GROUP: Final = 0
"""Kafka's number for coordinators of groups."""

_MOST_WORKERS: Final = 100
"""How many workers may share a data directory."""


class Membership:
    """A note in the data directory, locked while the worker lives. If another worker can lock it, its writer is dead.

    Args:
        directory: directory of the notes of all workers with this data directory.
        group: the consumer group.
        settings: aiokafka's settings: brokers and security.
    """

    def __init__(self, directory: Path, group: str, settings: dict[str, Any]) -> None:
        self._directory = directory
        self._group = group
        self._settings = settings
        self._file: Any = None
        self._noted = ""

    async def leave_for_the_dead(self) -> bool:
        """Remove dead members with notes from the group; return whether one was removed, or was unknown to Kafka."""
        left = False
        try:
            for member in self._dead():
                left = await self._leave(member) or left
        except (OSError, ValueError, KafkaError, TimeoutError) as error:
            logger.info("%s: %s; the group waits for the session timeout", self._directory, error)
        return left

    @property
    def joined(self) -> bool:
        """Whether this worker is a member of the group."""
        return bool(self._noted)

    def note(self, member: str) -> None:
        """Note this worker's member id."""
        if member == self._noted:
            return
        self._noted = member
        if self._file is not None:
            self._write({"group": self._group, "member": member})

    def close(self) -> None:
        """Clear the note, because this worker has left the group itself."""
        if self._file is not None:
            self._write({})
            self._file.close()
            self._file = None

    def _write(self, facts: dict[str, str]) -> None:
        try:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(facts))
            self._file.flush()
        except OSError as error:
            logger.info("%s: %s; a restart will be a little slower", self._directory, error)

    def _dead(self) -> list[str]:
        """Return the members that are certainly dead; take a note for this worker, and keep it locked."""
        self._directory.mkdir(parents=True, exist_ok=True)
        members: list[str] = []
        for number in range(_MOST_WORKERS):
            path = self._directory / f"member-{number}"
            known = path.exists()
            if not known and self._file is not None:
                break
            file = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            file.seek(0)
            text = file.read()
            facts = json.loads(text) if text else {}
            if isinstance(facts, dict) and facts.get("group") == self._group and facts.get("member"):
                members.append(str(facts["member"]))
            if self._file is None:
                self._file = file
            else:
                file.truncate(0)
                file.close()
        return members

    async def _leave(self, member: str) -> bool:
        client = AIOKafkaClient(**self._settings)
        async with asyncio.timeout(_PATIENCE_S):
            await client.bootstrap()
            try:
                coordinator = await client.coordinator_lookup(_GROUP, self._group)
                await client.ready(coordinator, group=ConnectionGroup.COORDINATION)
                request = LeaveGroupRequest(self._group, member)
                answer = await client.send(coordinator, request, group=ConnectionGroup.COORDINATION)
            finally:
                await client.close()
        if answer.error_code == UnknownMemberIdError.errno:
            return True  # the group has removed the member already
        if answer.error_code:
            return False
        logger.info("%s: left the group for the worker that died here", member)
        return True
