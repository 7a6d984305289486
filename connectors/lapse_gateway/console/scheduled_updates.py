"""Scheduled updates of a SOW topic: a list, and forms that cancel them, with a preview first (L5, C47)."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from lapse.protocol.answer import ScheduledUpdate
from lapse.protocol.bookmark import Bookmark
from lapse_client.aio import SowClient
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import combine_filters
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.console.schedule_form import AT_ONCE, FORM, cancelled, preview
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

_SHOWN: Final = 50
"""The most updates on a page."""

_COUNTED: Final = 10_000
"""The most updates that a preview counts."""


async def _list(call: Call) -> Response:
    given, name = call.parameters, call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:
        matching = combine_filters(given["filter"], given["key"])
        found = await topic.scheduled(filter=matching, top_n=_SHOWN + 1, skip=given["skip"])
    more = len(found) > _SHOWN
    return rendered(call, "updates.html", topic=name, updates=found[:_SHOWN], more=more, size=_SHOWN, given=given)


async def _confirm(call: Call) -> Response:
    """Return the preview of a withdrawal."""
    given, name = call.parameters, call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:
        found = await _named_updates(topic, given, _COUNTED)
    due = [one.enqueue_at_ms for one in found]
    return preview(call, name, f"sow/{name}", "update", _effect(len(found)), len(found), due)


def _effect(count: int) -> str:
    if count == _COUNTED:
        return f"There are more than {_COUNTED:,}, and all of them are meant. They will never take effect."
    return "They will never take effect." if count > 1 else "It will never take effect."


async def _cancel(call: Call) -> Response:
    given, name = sent(call, FORM), call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:

        async def part() -> tuple[int, int]:
            found = await _named_updates(topic, given, AT_ONCE)
            # By bookmarks, so that exactly the updates of the preview are withdrawn, deletes included.
            return len(found), await topic.withdraw(bookmarks=[one.bookmark for one in found]) if found else 0

        return await cancelled(call, name, "update", given, part)


async def _named_updates(topic: SowClient, given: Any, most: int | None) -> list[ScheduledUpdate]:
    """Return the first scheduled updates that a form names."""
    if given["bookmark"]:
        meant = str(Bookmark.parse(given["bookmark"]))
        return [one for one in await topic.scheduled() if one.bookmark == meant]
    return await topic.scheduled(filter=combine_filters(given["filter"], given["key"]), top_n=most)


_FILTER, _KEY, _ = FORM

OPERATIONS: Final = (
    page(
        "/console/sow/{topic}/scheduled",
        "Updates that are to come",
        _list,
        _FILTER,
        _KEY,
        Parameter(name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0),
        part=True,
    ),
    page("/console/sow/{topic}/scheduled/confirm", "What would be withdrawn", _confirm, *FORM, part=True),
    action("/console/sow/{topic}/scheduled/cancel", "Withdraw scheduled updates", _cancel),
)
