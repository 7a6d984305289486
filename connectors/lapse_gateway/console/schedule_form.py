"""The common parts of forms that cancel scheduled messages or updates: fields, preview, and withdrawal in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from starlette.responses import Response

from lapse_gateway.console.page import rendered
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

AT_ONCE: Final = 5_000
"""How many messages or updates are looked up and withdrawn at a time."""

_WAIT_S: Final = 10.0
"""After this time, in seconds, an action begins no further part. The console's script gives up after 20 s."""

FORM: Final = (
    Parameter(name="filter", description="An expression."),
    Parameter(name="key", description="A key."),
    Parameter(name="bookmark", description="One of them."),
)


def preview(call: Call, name: str, path: str, what: str, effect: str, count: int, due: Collection[int]) -> Response:
    """Return the preview of a withdrawal.

    Args:
        call: the request.
        name: name of the entity.
        path: path of its page.
        what: `message` or `update`.
        effect: a sentence on the effect of the withdrawal.
        count: number of messages or updates.
        due: when they are due, ms since the epoch; empty = not shown.
    """
    return rendered(
        call,
        "confirm_schedule.html",
        name=name,
        path=path,
        what=what,
        effect=effect,
        given=call.parameters,
        count=count,
        first_ms=min(due, default=None),
        last_ms=max(due, default=None),
    )


async def cancelled(
    call: Call, name: str, what: str, given: Any, part: Callable[[], Awaitable[tuple[int, int]]]
) -> Response:
    """Withdraw scheduled messages or updates part by part, as long as the browser waits.

    Args:
        call: the request.
        name: name of the entity.
        what: `message` or `update`.
        given: fields of the form.
        part: finds and withdraws up to `AT_ONCE` of them; returns how many were found, and how many withdrawn.
    """
    loop = asyncio.get_running_loop()
    ends_s, withdrawn, more = loop.time() + _WAIT_S, 0, True
    try:
        while more and loop.time() < ends_s:
            found, done = await part()
            withdrawn += done
            more = done > 0 and found == AT_ONCE
    finally:
        facts = {field.name: given[field.name] for field in FORM if given[field.name]}
        call.record("cancel scheduled", name, **facts, withdrawn=withdrawn)
    left = " There are more: cancel once again." if more else ""
    subject = f"1 scheduled {what} is" if withdrawn == 1 else f"{withdrawn:,} scheduled {what}s are"
    return rendered(call, "done.html", outcome=f"{subject} cancelled.{left}")
