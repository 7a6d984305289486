"""What a shard's authorizer remembers at take-over: the signatures that were used shortly before (X4)."""

from __future__ import annotations

from lapse.core.used_signature import REMEMBERED_MS
from lapse.runtime.shard.command_authorizer import CommandAuthorizer, Guard
from lapse.runtime.shard.log import Log
from lapse.runtime.tp import TP


async def remembering(guard: Guard, commands: TP, position: int, reader: Log, now_ms: int) -> CommandAuthorizer:
    """A shard's authorizer, who knows the commands that counted shortly before those still to be read (X4).

    Args:
        guard: of the entity.
        commands: the shard's partition of the commands topic.
        position: the first command that is still to be read; 0 = all are.
        reader: reads the commands before it again.
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
