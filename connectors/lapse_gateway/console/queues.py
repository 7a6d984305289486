"""Pages on a queue: its figures, messages and subscriptions, a message's life, and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.core.expression import ExpressionError, compile_filter
from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command_field import QUEUE_STATES
from lapse_client.aio import Queue, Replayed, history, replay
from lapse_client.error import AnswerTimeout, ConnectionFailed, LapseError
from lapse_client.reading.count_text import count_text
from lapse_gateway.console import standing
from lapse_gateway.console.page import file, rendered
from lapse_gateway.console.route import PAGE, action, check_entity, page, sent
from lapse_gateway.console.watch import FIRST_S, PATIENCE_S, STATES
from lapse_gateway.fault import Fault
from lapse_gateway.figures import RATES
from lapse_gateway.operation import Call, Operation
from lapse_gateway.parameter import Parameter

_SHOWN: Final = 50
"""The most messages on a page."""

EARLY: Final = frozenset({"scheduled", "held"})
"""States of messages that can be withdrawn."""

_PURGED: Final = ("available", "delayed", "scheduled", "held")
"""States whose messages a purge removes, beside leased ones."""


async def _queue(call: Call) -> Response:
    name = call.path["queue"]
    await check_entity(call, name, sow=False)
    state = await _state(call, name, FIRST_S)
    return rendered(call, "queue.html", queue=name, given=call.parameters, known=QUEUE_STATES, standing=[], **state)


async def _queue_live(call: Call) -> Response:
    name = call.path["queue"]
    state = await _state(call, name, PATIENCE_S)
    figures = state["look"].figures
    shown = await standing.of_queue(call, name, bool(figures.get("leased"))) if figures else []
    return rendered(call, "queue_live.html", queue=name, standing=shown, **state)


async def _state(call: Call, name: str, patience_s: float) -> dict[str, Any]:
    figures = call.gateway.figures
    (look,), _ = await asyncio.gather(
        call.gateway.watch.look(call.caller, [name], patience_s=patience_s), figures.look(patience_s)
    )
    whole = call.caller.sees_whole(name)
    return {
        "look": look,
        "needs": [*(figures.needs(name) if whole else ()), *look.needs],
        "states": STATES,
        "most": standing.SHOWN,
        "rates": RATES,
        "figures": figures.of(name) if whole else None,
    }


async def _messages(call: Call) -> Response:
    given, name = call.parameters, call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        found = await queue.peek(
            filter=combine_filters(given["filter"], given["key"]),
            top_n=_SHOWN + 1,
            skip=given["skip"],
            state=given["state"],
        )
    return rendered(
        call,
        "messages.html",
        queue=name,
        messages=found[:_SHOWN],
        more=len(found) > _SHOWN,
        size=_SHOWN,
        given=given,
    )


def combine_filters(text: str | None, key: str | None) -> str | None:
    """Combine a form's filter and key into one filter; None = all messages.

    Raises:
        Fault: the filter is not a valid expression.
    """
    if text:
        try:
            compile_filter(text)
        except ExpressionError as error:
            raise Fault(ErrorCode.INVALID_EXPRESSION, f"filter: {error}") from error
    parts = [f"({text})"] if text else []
    if key:
        quoted = key.replace("'", "''")
        parts.append(f"KEY() = '{quoted}'")
    return " AND ".join(parts) or None


def _requested_bookmark(call: Call) -> Bookmark:
    """Return the bookmark of the requested message, if the caller may see its life."""
    name, text = call.path["queue"], call.parameters["bookmark"].strip()
    call.caller.check_whole(name, "a message's life")
    bookmark = Bookmark.parse(text.partition("#")[0])
    call.caller.check_reads(name, bookmark.topic, call.gateway.users.readers(bookmark.topic))
    return bookmark


async def _life(call: Call) -> Response:
    """Return the part with a message's life. It is a request of its own, because it reads whole topics."""
    bookmark = _requested_bookmark(call)
    found = await call.while_waited(history(bookmark, entity=call.path["queue"], connection=call.caller.connection))
    return rendered(call, "life.html", life=found, queue=call.path["queue"], bookmark=str(bookmark))


async def _message(call: Call) -> Response:
    """Return the page of a message. Further requests load its parts."""
    name, bookmark = call.path["queue"], _requested_bookmark(call)
    await check_entity(call, name, sow=False)
    return rendered(call, "message.html", queue=name, bookmark=str(bookmark))


async def _message_now(call: Call) -> Response:
    """Return the part with a message's present state and its record."""
    name, bookmark = call.path["queue"], _requested_bookmark(call)
    async with call.gateway.clients.queue(call.caller, name) as queue:
        record, (now, is_answered) = await asyncio.gather(_record(call, bookmark), _present_state(queue, bookmark))
    return rendered(
        call,
        "message_now.html",
        queue=name,
        bookmark=str(bookmark),
        record=record,
        now=now,
        is_answered=is_answered,
        early=EARLY,
    )


async def _present_state(queue: Queue, bookmark: Bookmark) -> tuple[QueuedMessage | None, bool]:
    """Return a message's present state, None if the queue does not have it; and whether a worker answered in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await queue.look_at(str(bookmark)), True
    except (TimeoutError, AnswerTimeout, ConnectionFailed):
        return None, False


async def _record(call: Call, bookmark: Bookmark) -> Replayed | None:
    """Return the record of a message; None if none can be read at its bookmark."""
    records = replay(bookmark, connection=call.caller.connection)
    try:
        async for record in records:
            return record if record.bookmark == bookmark else None
    except LapseError:
        return None
    finally:
        await records.aclose()  # type: ignore[attr-defined]  # a generator
    return None


_ACTIONS: Final = {
    "pause": "Stop all deliveries of this queue until it is resumed. Leased messages stay leased.",
    "resume": "Messages are delivered again.",
    "purge": "Remove these messages from the queue. They leave with the reason “purged”.",
    "expire": "Expire this message now. It leaves with the reason “forced_expire”.",
}


async def _confirm(call: Call) -> Response:
    """Return the preview of an action."""
    given, name = call.parameters, call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        preview = await _preview(queue, given)
    return rendered(
        call, "confirm.html", queue=name, given=given, preview=preview, consequence=_ACTIONS[given["action"]]
    )


def _named(given: Mapping[str, Any]) -> Bookmark:
    """Return the bookmark of the message that a form names.

    Raises:
        ValueError: it names none, or several.
    """
    return Bookmark.parse(given["bookmark"] or "")


async def _preview(queue: Queue, given: dict[str, Any] | Any) -> dict[str, Any]:
    if given["action"] == "expire":
        _named(given)
        return {"count": 1, "leased": 0}
    depth = await queue.depth(filter=combine_filters(given["filter"], given["key"]))
    leased = depth.get("leased", 0)
    count = sum(depth.get(state, 0) for state in _PURGED) + (leased if given["leased"] else 0)
    return {"count": count, "leased": leased}


async def _act(call: Call) -> Response:
    given, name = sent(call, _FORM), call.path["queue"]
    stated = {field: given[field] for field in ("filter", "key", "leased", "bookmark") if given[field]}
    async with call.gateway.clients.queue(call.caller, name) as queue:
        with call.recording(given["action"], name, **stated) as facts:
            done = await _carry_out(queue, given, facts)
    return rendered(call, "done.html", outcome=done)


async def _carry_out(queue: Queue, given: Mapping[str, Any], facts: dict[str, Any]) -> str:
    """Carry out an action, add its result to the facts, and return a sentence on it."""
    match given["action"]:
        case "purge":
            counts = await queue.purge(filter=combine_filters(given["filter"], given["key"]), leased=given["leased"])
            facts["counts"] = counts
            return f"{count_text(counts.get('removed', 0), 'message')} removed."
        case "expire":
            message = str(_named(given))
            (result,) = await queue.expire([message])
            facts["result"] = result.result
            gone = result.result in ("settled", "time_limit")
            return f"{message} is expired." if gone else f"Nothing was done: {result.result}."
        case "pause":
            await queue.pause()
            return "Deliveries are stopped."
        case _:
            await queue.resume()
            return "Deliveries go on."


_FORM: Final = (
    Parameter(name="action", description="What is done.", required=True, choices=tuple(_ACTIONS)),
    Parameter(name="filter", description="An expression."),
    Parameter(name="key", description="A key."),
    Parameter(name="bookmark", description="A message."),
    Parameter(name="leased", description="Leased messages, too.", kind="flag", default=False),
)
_FIND: Final = (
    Parameter(name="filter", description="An expression."),
    Parameter(name="key", description="A key."),
    Parameter(name="state", description="Only messages in this state.", choices=("", *QUEUE_STATES), default=""),
    Parameter(name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0),
)

_BOOKMARK: Final = Parameter(name="bookmark", description="Which message.", required=True)

OPERATIONS: Final = (
    page("/console/queues/{queue}", "A queue", _queue, *_FIND[:3]),
    page("/console/queues/{queue}/live", "Its figures, to refresh them", _queue_live, part=True),
    page("/console/queues/{queue}/messages", "Its messages", _messages, *_FIND, part=True),
    page("/console/queues/{queue}/message", "A message and its life", _message, _BOOKMARK),
    page(
        "/console/queues/{queue}/message/now",
        "How a message stands, and its record",
        _message_now,
        _BOOKMARK,
        part=True,
    ),
    page("/console/queues/{queue}/message/life", "What happened to a message", _life, _BOOKMARK, part=True),
    page("/console/queues/{queue}/confirm", "What an action would do", _confirm, *_FORM, part=True),
    action("/console/queues/{queue}/act", "Do it", _act),
    Operation(
        method="GET",
        path="/console/static/{name}",
        summary="A file",
        handler=file,
        parameters=(Parameter(name="v", description="Which text of it."),),
        content=PAGE,
        open=True,
    ),
)
