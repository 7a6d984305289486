"""What the forms have in common that cancel scheduled messages and updates: their fields, a preview, and parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from starlette.responses import Response

from lapse_gateway.console.page import rendered
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

AT_ONCE: Final = 5_000
"""How many are looked up and withdrawn at a time."""

_WAIT_S: Final = 10.0
"""An action begins no further part after so long, s; a browser of the console gives up after 20."""

FORM: Final = (
    Parameter(name="filter", says="An expression."),
    Parameter(name="key", says="A key."),
    Parameter(name="bookmark", says="One of them."),
)


def preview(call: Call, name: str, path: str, what: str, effect: str, count: int, due: Collection[int]) -> Response:
    """What would be withdrawn.

    Args:
        call: the request.
        name: the entity.
        path: of its page.
        what: `message` or `update`.
        effect: a sentence: what becomes of them.
        count: how many they are.
        due: when they are due, ms since the epoch; empty = it is not shown.
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
    """Withdraw them part by part, for as long as a browser waits.

    Args:
        call: the request.
        name: the entity.
        what: `message` or `update`.
        given: the form.
        part: finds up to `AT_ONCE` of them and withdraws these; returns how many were found, and how many withdrawn.
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
    some = f"1 scheduled {what} is" if withdrawn == 1 else f"{withdrawn:,} scheduled {what}s are"
    return rendered(call, "done.html", done=f"{some} cancelled.{left}")
