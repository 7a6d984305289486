"""Forms of the console that cancel scheduled messages: a preview first, then they are withdrawn (L5)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark
from lapse_client.aio import Queue
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import EARLY, wanted
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

_AT_ONCE: Final = 5_000
"""How many are looked up and withdrawn at a time."""

_DATED: Final = 1_000
"""A preview of no more than this many says when they are due."""

_WAIT_S: Final = 10.0
"""An action begins no further part after so long, s; a browser of the console gives up after 20."""


async def _confirm(call: Call) -> Response:
    """Which messages would be withdrawn."""
    given, name = call.parameters, call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        if given["bookmark"]:
            found = await _found(queue, given)
            count = len(found)
        else:
            matching = wanted(given["filter"], given["key"])
            count = (await queue.depth(filter=matching)).get("scheduled", 0)
            found = await queue.peek(filter=matching, top_n=count, state="scheduled") if count <= _DATED else []
    due = [one.until_ms for one in found if one.until_ms is not None]
    return rendered(
        call,
        "confirm_schedule.html",
        name=name,
        path=f"queues/{name}",
        what="message",
        effect="They will never be delivered." if count > 1 else "It will never be delivered.",
        given=given,
        count=count,
        first_ms=min(due, default=None),
        last_ms=max(due, default=None),
    )


async def _cancel(call: Call) -> Response:
    given, name = sent(call, _FORM), call.path["queue"]
    loop = asyncio.get_running_loop()
    ends_s, withdrawn, more = loop.time() + _WAIT_S, 0, True
    async with call.gateway.clients.queue(call.caller, name) as queue:
        try:
            while more and loop.time() < ends_s:
                found = await _found(queue, given)
                # With its count a message is named as it was found: one that was delivered meanwhile stays leased.
                results = await queue.cancel([f"{one.bookmark}#{one.delivery_count}" for one in found]) if found else []
                settled = sum(len(one.messages) for one in results if one.settled)
                withdrawn += settled
                more = settled > 0 and len(found) == _AT_ONCE
        finally:
            facts = {field: given[field] for field in ("filter", "key", "bookmark") if given[field]}
            call.record("cancel scheduled", name, **facts, withdrawn=withdrawn)
    left = " There are more: cancel once again." if more else ""
    told = "1 scheduled message is" if withdrawn == 1 else f"{withdrawn:,} scheduled messages are"
    return rendered(call, "done.html", done=f"{told} cancelled.{left}")


async def _found(queue: Queue, given: Any) -> list[QueuedMessage]:
    """The scheduled messages that a form is about, the first of them."""
    if given["bookmark"]:
        one = await queue.look_at(str(Bookmark.parse(given["bookmark"])))
        return [one] if one is not None and one.state in EARLY else []
    return await queue.peek(filter=wanted(given["filter"], given["key"]), top_n=_AT_ONCE, state="scheduled")


_FORM: Final = (
    Parameter(name="filter", says="An expression."),
    Parameter(name="key", says="A key."),
    Parameter(name="bookmark", says="A message."),
)

OPERATIONS: Final = (
    page("/console/queues/{queue}/scheduled/confirm", "What would be withdrawn", _confirm, *_FORM, part=True),
    action("/console/queues/{queue}/scheduled/cancel", "Withdraw scheduled messages", _cancel),
)
