"""Forms of the console that cancel scheduled messages: a preview first, and then the withdrawal (L5)."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark
from lapse_client.aio import Queue
from lapse_gateway.console.queues import EARLY, combine_filters
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.console.schedule_form import AT_ONCE, FORM, cancelled, preview
from lapse_gateway.operation import Call

_DATED: Final = 1_000
"""The most messages for which a preview shows when they are due."""


async def _confirm(call: Call) -> Response:
    """Return the preview of a withdrawal."""
    given, name = call.parameters, call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        if given["bookmark"]:
            found = await _named_messages(queue, given)
            count = len(found)
        else:
            matching = combine_filters(given["filter"], given["key"])
            count = (await queue.depth(filter=matching)).get("scheduled", 0)
            found = await queue.peek(filter=matching, top_n=count, state="scheduled") if count <= _DATED else []
    due = [one.until_ms for one in found if one.until_ms is not None]
    effect = "They will never be delivered." if count > 1 else "It will never be delivered."
    return preview(call, name, f"queues/{name}", "message", effect, count, due)


async def _cancel(call: Call) -> Response:
    given, name = sent(call, FORM), call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:

        async def part() -> tuple[int, int]:
            found = await _named_messages(queue, given)
            # The delivery count is the fencing token, so a message that was delivered meanwhile stays leased.
            results = await queue.cancel([f"{one.bookmark}#{one.delivery_count}" for one in found]) if found else []
            return len(found), sum(len(one.messages) for one in results if one.settled)

        return await cancelled(call, name, "message", given, part)


async def _named_messages(queue: Queue, given: Any) -> list[QueuedMessage]:
    """Return the first scheduled messages that a form names."""
    if given["bookmark"]:
        one = await queue.look_at(str(Bookmark.parse(given["bookmark"])))
        return [one] if one is not None and one.state in EARLY else []
    return await queue.peek(filter=combine_filters(given["filter"], given["key"]), top_n=AT_ONCE, state="scheduled")


OPERATIONS: Final = (
    page("/console/queues/{queue}/scheduled/confirm", "What would be withdrawn", _confirm, *FORM, part=True),
    action("/console/queues/{queue}/scheduled/cancel", "Withdraw scheduled messages", _cancel),
)
