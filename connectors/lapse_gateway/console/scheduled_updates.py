"""Scheduled updates of a SOW topic: what is to come, and forms that cancel it, with a preview first (L5, C47)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from lapse.protocol.answer import ScheduledUpdate
from lapse.protocol.bookmark import Bookmark
from lapse_client.aio import SowClient
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import wanted
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

_SHOWN: Final = 50
"""Updates on a page."""

_AT_ONCE: Final = 5_000
"""How many are looked up and withdrawn at a time."""

_COUNTED: Final = 10_000
"""A preview counts no more than so many."""

_WAIT_S: Final = 10.0
"""An action begins no further part after so long, s; a browser of the console gives up after 20."""


async def _list(call: Call) -> Response:
    given, name = call.parameters, call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:
        matching = wanted(given["filter"], given["key"])
        found = await topic.scheduled(filter=matching, top_n=_SHOWN + 1, skip=given["skip"])
    more = len(found) > _SHOWN
    return rendered(call, "updates.html", topic=name, updates=found[:_SHOWN], more=more, size=_SHOWN, given=given)


async def _confirm(call: Call) -> Response:
    """Which updates would be withdrawn."""
    given, name = call.parameters, call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:
        found = await _found(topic, given, _COUNTED)
    due = [one.enqueue_at_ms for one in found]
    return rendered(
        call,
        "confirm_schedule.html",
        name=name,
        path=f"sow/{name}",
        what="update",
        effect=_effect(len(found)),
        given=given,
        count=len(found),
        first_ms=min(due, default=None),
        last_ms=max(due, default=None),
    )


def _effect(count: int) -> str:
    if count == _COUNTED:
        return f"There are more than {_COUNTED:,}, and all of them are meant. They will never take effect."
    return "They will never take effect." if count > 1 else "It will never take effect."


async def _cancel(call: Call) -> Response:
    given, name = sent(call, _FORM), call.path["topic"]
    loop = asyncio.get_running_loop()
    ends_s, withdrawn, more = loop.time() + _WAIT_S, 0, True
    async with call.gateway.clients.sow(call.caller, name) as topic:
        try:
            while more and loop.time() < ends_s:
                found = await _found(topic, given, _AT_ONCE)
                # By their bookmarks: what a filter lets through is what the preview has counted, deletes included.
                done = await topic.withdraw(bookmarks=[one.bookmark for one in found]) if found else 0
                withdrawn += done
                more = done > 0 and len(found) == _AT_ONCE
        finally:
            facts = {field: given[field] for field in ("filter", "key", "bookmark") if given[field]}
            call.record("cancel scheduled", name, **facts, withdrawn=withdrawn)
    left = " There are more: cancel once again." if more else ""
    told = "1 scheduled update is" if withdrawn == 1 else f"{withdrawn:,} scheduled updates are"
    return rendered(call, "done.html", done=f"{told} cancelled.{left}")


async def _found(topic: SowClient, given: Any, most: int | None) -> list[ScheduledUpdate]:
    """The scheduled updates that a form is about, the first of them."""
    if given["bookmark"]:
        meant = str(Bookmark.parse(given["bookmark"]))
        return [one for one in await topic.scheduled() if one.bookmark == meant]
    return await topic.scheduled(filter=wanted(given["filter"], given["key"]), top_n=most)


_FILTER: Final = Parameter(name="filter", says="An expression.")
_KEY: Final = Parameter(name="key", says="A key.")
_FORM: Final = (_FILTER, _KEY, Parameter(name="bookmark", says="An update."))

OPERATIONS: Final = (
    page(
        "/console/sow/{topic}/scheduled",
        "Updates that are to come",
        _list,
        _FILTER,
        _KEY,
        Parameter(name="skip", says="So many are left out first.", kind="whole", most=1_000_000_000, default=0),
        part=True,
    ),
    page("/console/sow/{topic}/scheduled/confirm", "What would be withdrawn", _confirm, *_FORM, part=True),
    action("/console/sow/{topic}/scheduled/cancel", "Withdraw scheduled updates", _cancel),
)
