"""Restores what a shard's authorizer must know at take-over: signatures that were used shortly before (X4)."""

from __future__ import annotations

from lapse.core.used_signature import REMEMBERED_MS
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer, Guard
from lapse.runtime.shard.log import Log
from lapse.runtime.tp import TP


async def remembering(guard: Guard, commands: TP, position: int, reader: Log, now_ms: int) -> CommandAuthorizer:
    """Return a shard's authorizer that knows the signatures of recent commands, so that none counts twice (X4).

    Args:
        guard: the users, keys and rights of the entity.
        commands: the shard's partition of the commands topic.
        position: offset of the first command that is not processed yet. With 0, none is processed.
        reader: reads the processed commands again.
        now_ms: the broker's clock, ms since the epoch.
    """
    authorizer = CommandAuthorizer(guard, commands.partition)
    if position:
        end = (await reader.ends([commands]))[commands]
        unread = await reader.read(*commands, position, position) if position < end else []
        since_ms = (unread[0].timestamp if unread else now_ms) - REMEMBERED_MS
        offset = (await reader.ends([commands], since_ms))[commands]
        while offset < position and (records := await reader.read(*commands, offset, position - 1)):
            authorizer.remember(record for record in records if record.offset < position)
            offset = records[-1].offset + 1
        await reader.release(*commands)
    return authorizer
