"""Queues as a whole over HTTP: list, depth, peek, pause, resume, purge, and the life of a message."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command_field import QUEUE_STATES
from lapse_client.aio import history
from lapse_client.kafka.connection import entities
from lapse_gateway.fault import Fault
from lapse_gateway.figures import RATES
from lapse_gateway.operation import INSTANT, TEXT, WHOLE, Call, Operation, answered, counted, listed, obj
from lapse_gateway.parameter import Parameter, filter_parameter

MOST_PEEKED: Final = 10_000


class Purge(BaseModel):
    """A purge of a queue.

    Attributes:
        filter: an expression for the messages to remove. Without it, `all` must be true.
        all: whether to remove all messages.
        leased: whether to remove leased messages, too.
    """

    model_config = ConfigDict(extra="forbid")

    filter: str | None = None
    all: bool = False
    leased: bool = False


async def names(call: Call, *, sow: bool) -> list[str]:
    """Return the queues, or SOW topics, on which the caller has any right."""
    return seen(call, await asyncio.to_thread(call.caller.connection.partitions), sow=sow)


def seen(call: Call, topics: Mapping[str, int], *, sow: bool) -> list[str]:
    """Return those queues, or SOW topics, of a cluster's topics on which the caller has any right."""
    return [name for name in entities(topics, sow=sow) if call.caller.may_see_some(name)]


async def _queues(call: Call) -> Response:
    return answered({"queues": await names(call, sow=False)})


async def _depth(call: Call) -> Response:
    name = call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        return answered({"queue": name, **await queue.depth(filter=call.parameters["filter"])})


async def _peek(call: Call) -> Response:
    given = call.parameters
    async with call.gateway.clients.queue(call.caller, call.path["queue"]) as queue:
        found = await queue.peek(
            filter=given["filter"], top_n=given["top_n"], skip=given["skip"], state=given["state"] or ""
        )
    return answered({"messages": [dataclasses.asdict(one) for one in found]})


async def _figures(call: Call) -> Response:
    name, figures = call.path["entity"], call.gateway.figures
    call.caller.check_whole(name, "what workers count")
    if not figures.known:
        raise Fault(
            "no_figures", "this gateway knows no worker's figures: start it with --figures, or set metrics_port"
        )
    await figures.look()
    found = figures.of(name)
    if not found.lateness:
        raise Fault("no_figures", "; ".join([f"no worker serves figures of {name[:100]}", *figures.faults]))
    lateness = [dataclasses.asdict(band) for band in found.lateness]
    return answered({"entity": name, "per_s": found.per_s, "lateness": lateness})


async def _pause(call: Call) -> Response:
    name = call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        with call.recording("pause", name):
            await queue.pause()
    return answered({"paused": True})


async def _resume(call: Call) -> Response:
    name = call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        with call.recording("resume", name):
            await queue.resume()
    return answered({"paused": False})


async def _purge(call: Call) -> Response:
    wanted = call.decoded(Purge)
    if wanted.all is (wanted.filter is not None):
        raise Fault(ErrorCode.INVALID_ARGUMENT, 'purge: name a filter, or say {"all": true} for everything')
    name = call.path["queue"]
    async with call.gateway.clients.queue(call.caller, name) as queue:
        with call.recording("purge", name, filter=wanted.filter, leased=wanted.leased) as facts:
            facts["counts"] = counts = await queue.purge(filter=wanted.filter, leased=wanted.leased)
    return answered(counts)


async def _explain(call: Call) -> Response:
    entity = call.parameters["entity"]
    if call.caller.entitlements is not None:
        if not entity:
            raise Fault(ErrorCode.INVALID_ARGUMENT, "parameter entity: is needed where there are users")
        call.caller.check_whole(entity, "the life of a message")
        about = Bookmark.parse(call.parameters["bookmark"]).topic
        call.caller.check_reads(entity, about, call.gateway.users.readers(about))
    if entity and not topic.NAME.match(entity):
        raise Fault("unknown_entity", f"{entity[:40]!r} can name no entity")
    found = await call.while_waited(
        history(call.parameters["bookmark"], entity=entity or None, connection=call.caller.connection)
    )
    moments: list[dict[str, Any]] = [
        {
            "at_ms": one.at_ms,
            "entity": one.entity,
            "what": str(one.what),
            "facts": one.facts,
            "shown_by": str(one.shown_by),
            "message": str(one.message),
        }
        for one in found.moments
    ]
    return answered({"bookmark": str(found.bookmark), "found": found.found, "size": found.size, "moments": moments})


_FILTER: Final = filter_parameter("An expression; only messages that match.")
_PAUSED: Final = obj(paused={"type": "boolean"})

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/queues",
        summary="Name all queues",
        handler=_queues,
        answer=obj(queues=listed(TEXT)),
    ),
    Operation(
        method="GET",
        path="/v1/queues/{queue}",
        summary="Count a queue's messages, by state",
        description="With a filter those that match, nothing else. Fields are counts but `queue` and `oldest_age_ms`.",
        handler=_depth,
        parameters=(_FILTER,),
        answer=counted(
            queue=TEXT,
            available=WHOLE,
            leased=WHOLE,
            delayed=WHOLE,
            depth=WHOLE,
            scheduled=WHOLE,
            dying=WHOLE,
            paused=WHOLE,
            subscriptions=WHOLE,
            oldest_age_ms={"type": ["integer", "null"]},
        ),
    ),
    Operation(
        method="GET",
        path="/v1/queues/{queue}/messages",
        summary="Look at a queue's messages",
        description="Takes no lease and counts nothing. Without payloads.",
        handler=_peek,
        parameters=(
            _FILTER,
            Parameter(
                name="top_n", description="At most so many.", kind="whole", least=1, most=MOST_PEEKED, default=100
            ),
            Parameter(name="state", description="Only messages in this state.", choices=QUEUE_STATES),
            Parameter(
                name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0
            ),
        ),
        answer=obj(
            messages=listed(
                obj(
                    bookmark=TEXT,
                    state=TEXT,
                    expires_at_ms=INSTANT,
                    delivery_count=WHOLE,
                    cancel_count=WHOLE,
                    subscription=TEXT,
                    until_ms=INSTANT,
                    waits_for=TEXT,
                    since_ms=INSTANT,
                )
            )
        ),
    ),
    Operation(
        method="GET",
        path="/v1/figures/{entity}",
        summary="Tell rates of a queue or SOW topic, and how late it expires messages",
        description=(
            "From the figures that workers publish (`--figures`). `per_s` is over the last ten seconds, and empty when "
            "it is asked for the first time. `lateness` counts since workers took the shards over."
        ),
        handler=_figures,
        answer=obj(
            entity=TEXT,
            per_s={"type": "object", "properties": {name: {"type": "number"} for name in RATES}},
            lateness=listed(obj(up_to_s={"type": ["number", "null"]}, count=WHOLE)),
        ),
    ),
    Operation(
        method="POST",
        path="/v1/queues/{queue}/pause",
        summary="Deliver nothing until it is resumed",
        handler=_pause,
        answer=_PAUSED,
        changes=True,
    ),
    Operation(
        method="POST",
        path="/v1/queues/{queue}/resume",
        summary="Deliver again",
        handler=_resume,
        answer=_PAUSED,
        changes=True,
    ),
    Operation(
        method="POST",
        path="/v1/queues/{queue}/purge",
        summary="Take messages out",
        description="They leave with the reason `purged`.",
        handler=_purge,
        model=Purge,
        answer=counted(removed=WHOLE, skipped=WHOLE),
        changes=True,
    ),
    Operation(
        method="GET",
        path="/v1/explain",
        summary="Tell what happened to one message",
        description="From the topics, as `lapse explain` does: it takes as long as they are large.",
        handler=_explain,
        parameters=(
            Parameter(name="bookmark", description="Which message: topic:partition:offset.", required=True),
            Parameter(name="entity", description="Only events of this queue or SOW topic."),
        ),
        answer=obj(
            bookmark=TEXT,
            found={"type": "boolean"},
            size={"type": ["integer", "null"]},
            moments=listed(
                obj(at_ms=WHOLE, entity=TEXT, what=TEXT, facts={"type": "object"}, shown_by=TEXT, message=TEXT)
            ),
        ),
    ),
)
