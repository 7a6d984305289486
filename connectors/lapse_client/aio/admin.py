"""The `Admin` client for asyncio: the same calls, as coroutines (Q23, X3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lapse_client import admin as sync_admin
from lapse_client.admin import DEFAULT_DEPLOYMENT, Defined
from lapse_client.aio.client import AsyncClient

if TYPE_CHECKING:
    from lapse_client.kafka.connection import Connection


class Admin(AsyncClient[sync_admin.Admin]):
    """Creates, changes and deletes queues and SOW topics; see `lapse_client.Admin`, whose arguments these are."""

    def __init__(
        self, deployment: str = DEFAULT_DEPLOYMENT, *, connection: Connection | None = None, timeout_s: float = 30.0
    ) -> None:
        super().__init__(sync_admin.Admin(deployment, connection=connection, timeout_s=timeout_s))

    async def create_queue(self, name: str, **settings: Any) -> Defined:
        """Create a queue. Return when all its shards serve it, or after two seconds."""
        return await asyncio.to_thread(self._twin.create_queue, name, **settings)

    async def alter_queue(self, name: str, *, version: int | None = None, **settings: Any) -> Defined:
        """Change settings of a queue. Settings that are not named stay."""
        return await asyncio.to_thread(self._twin.alter_queue, name, version=version, **settings)

    async def delete_queue(self, name: str, *, force: bool = False) -> dict[str, int]:
        """Delete a queue, and wait until its topics are gone."""
        return await asyncio.to_thread(self._twin.delete_queue, name, force=force)

    async def create_sow_topic(self, name: str, **settings: Any) -> Defined:
        """Create a SOW topic; see `create_queue`."""
        return await asyncio.to_thread(self._twin.create_sow_topic, name, **settings)

    async def alter_sow_topic(self, name: str, *, version: int | None = None, **settings: Any) -> Defined:
        """Change settings of a SOW topic; see `alter_queue`."""
        return await asyncio.to_thread(self._twin.alter_sow_topic, name, version=version, **settings)

    async def delete_sow_topic(self, name: str, *, force: bool = False) -> dict[str, int]:
        """Delete a SOW topic, and wait until its topics are gone."""
        return await asyncio.to_thread(self._twin.delete_sow_topic, name, force=force)
