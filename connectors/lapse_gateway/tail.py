"""The tail of an entity: a stream of its events (D4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse_client import Event, aio
from lapse_client.error import LapseError
from lapse_client.reading.event_reader import EventReader
from lapse_gateway.events import event, stream
from lapse_gateway.fault import Fault, fault_of
from lapse_gateway.operation import Call, Operation
from lapse_gateway.parameter import Parameter

MOST_TAILS: Final = 20
"""The most tails that are open at once, because each takes a thread."""

_LAST_ID: Final = "Last-Event-ID"

_LONGEST_ID: Final = 16 << 10
"""The most characters of an event's id. It names every partition, and a request's headers have to hold it."""

_LATEST_MS: Final = (1 << 53) - 1


def event_as_json(one: Event) -> dict[str, Any]:
    """Return an event for JSON, without empty fields."""
    facts = {
        "reasons": list(one.reasons),
        "subscription": one.subscription,
        "key": None if one.key is None else one.key.decode("utf-8", "backslashreplace"),
        "expires_at_ms": one.expires_at_ms,
        "delivery_count": one.delivery_count,
        "cancel_count": one.cancel_count,
        "dead_letter_topic": one.dead_letter_topic,
        "detail": one.detail,
    }
    return {
        "event": str(one.event),
        "at_ms": one.at_ms,
        "shard": one.partition,
        "count": sum(len(some) for some in one.messages),
        "messages": [str(some) for some in one.messages],
        **{name: fact for name, fact in facts.items() if fact not in ("", None, [])},
    }


async def _tail(call: Call) -> Response:
    name, gateway, since_ms = call.path["entity"], call.gateway, call.parameters["since_ms"]
    call.caller.check_whole(name, "the events of its messages")
    if gateway.tails >= MOST_TAILS:
        text = f"{gateway.tails} tails are open, the most of this gateway: end some, or ask another one"
        raise Fault("too_many_subscriptions", text, {"Retry-After": "5"})
    after = call.request.headers.get(_LAST_ID) or None
    gateway.tails += 1  # count now, because many requests may come before the first tail is open
    try:
        # Refusals are answers, not events.
        await asyncio.to_thread(EventReader, name, connection=gateway.connection, after=after)
    except BaseException as error:
        gateway.tails -= 1
        if isinstance(error, ValueError):
            text = f"header {_LAST_ID}: expected the id of an event of this stream, not {after or '':.40}"
            raise Fault(ErrorCode.INVALID_ARGUMENT, text) from error
        raise
    found = aio.EventReader(
        name, connection=gateway.connection, follow=True, since_ms=since_ms, newer=since_ms is None, after=after
    )

    async def end() -> None:
        gateway.tails -= 1

    return stream(gateway, _events(found), end)


async def _events(found: aio.EventReader) -> AsyncGenerator[bytes, None]:
    try:
        async for one in found:
            reached = found.reached
            yield event("event", event_as_json(one), reached if len(reached) <= _LONGEST_ID else "")
    except LapseError as error:
        yield event("error", fault_of(error).as_dict())


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/events/{entity}",
        summary="Follow what happens to the messages of a queue or SOW topic, as server-sent events",
        description=(
            "Events `event`: what happened to which messages, when and why. From now on, since an instant, or behind "
            "the event whose id the header `Last-Event-ID` names. After a crash one may come twice."
        ),
        handler=_tail,
        parameters=(
            Parameter(
                name="since_ms",
                description="Written at this instant or later, ms since the epoch.",
                kind="whole",
                most=_LATEST_MS,
            ),
        ),
        content="text/event-stream",
    ),
)
