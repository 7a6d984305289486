"""SOW topics over HTTP: list, query, follow, and delete records (S3, S5 to S7)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lapse_client import SowRecord
from lapse_client.aio import SowSubscription
from lapse_client.error import LapseError
from lapse_gateway import looking, payload
from lapse_gateway.events import event, stream
from lapse_gateway.fault import Fault, fault_of
from lapse_gateway.operation import INSTANT, TEXT, WHOLE, Call, Operation, answered, listed, obj
from lapse_gateway.parameter import Parameter, filter_parameter

MOST_RECORDS: Final = 10_000
_MODES: Final = ("sow_and_subscribe", "subscribe", "delta_subscribe", "sow_and_delta_subscribe")


class Deletion(BaseModel):
    """A deletion of records, by exactly one of four ways.

    Attributes:
        keys: keys of the records.
        data: payloads as text with the key fields of the records, for a topic whose key is in the payload.
        filter: an expression that the records match.
        bookmarks: bookmarks of the records' last updates. A bookmark of a scheduled update withdraws it.
    """

    model_config = ConfigDict(extra="forbid")

    keys: list[str] = Field(default_factory=list, max_length=MOST_RECORDS)
    data: list[str] = Field(default_factory=list, max_length=MOST_RECORDS)
    filter: str | None = None
    bookmarks: list[str] = Field(default_factory=list, max_length=MOST_RECORDS)


def record_as_json(record: SowRecord) -> dict[str, Any]:
    """Return a record, or an update of it, for JSON."""
    ended = {"operation": record.operation, "reasons": list(record.reasons)} if record.kind == "oof" else {}
    return {
        "kind": record.kind,
        "partition": record.partition,
        "bookmark": None if record.bookmark is None else str(record.bookmark),
        "timestamp_ms": record.timestamp_ms,
        "expires_at_ms": record.expires_at_ms,
        **ended,
        **payload.message_shown(record.key, record.headers, record.value),
    }


async def _topics(call: Call) -> Response:
    return answered({"sow": await looking.names(call, sow=True)})


async def _depth(call: Call) -> Response:
    name = call.path["topic"]
    async with call.gateway.clients.sow(call.caller, name) as topic:
        return answered({"topic": name, **await topic.depth()})


async def _query(call: Call) -> Response:
    given = call.parameters
    async with call.gateway.clients.sow(call.caller, call.path["topic"]) as topic:
        found = topic.query(
            given["filter"],
            order_by=given["order_by"],
            top_n=given["top_n"],
            skip=given["skip"] or None,
            keys=given["key"] or None,
            select=given["select"],
        )
        return answered({"records": [record_as_json(record) async for record in found]})


async def follow(call: Call, pages: Counter[str] | None = None) -> Response:
    """Follow a SOW topic.

    Args:
        call: the request.
        pages: counts the open pages of the console that follow each topic; None = a program follows it.
    """
    gateway, given, name = call.gateway, call.parameters, call.path["topic"]
    if gateway.streams >= gateway.settings.most_subscriptions:
        raise Fault(
            "too_many_subscriptions",
            f"{gateway.streams} streams are open, the most of this gateway: end some, or ask another one",
            {"Retry-After": "5"},
        )
    gateway.streams += 1  # count now, because many requests may come before the first stream is open
    try:
        async with gateway.clients.sow(call.caller, name) as topic:
            following = getattr(topic, given["mode"])
            subscription: SowSubscription = following(given["filter"] or None, select=given["select"])
            await subscription.__aenter__()  # open it here, so that a refusal is an answer, not an event
    except BaseException:
        gateway.streams -= 1
        raise
    if pages is not None:
        pages[name] += 1

    async def end() -> None:
        gateway.streams -= 1
        if pages is not None:
            pages[name] -= 1
        await subscription.close()

    return stream(gateway, _updates(subscription), end)


async def _updates(subscription: SowSubscription) -> AsyncGenerator[bytes, None]:
    try:
        async for record in subscription:
            yield event(record.kind, record_as_json(record), "" if record.bookmark is None else str(record.bookmark))
    except LapseError as error:
        yield event("error", fault_of(error).as_dict())


async def _delete(call: Call) -> Response:
    wanted = call.decoded(Deletion)
    async with call.gateway.clients.sow(call.caller, call.path["topic"]) as topic:
        with call.recording("delete records", call.path["topic"], filter=wanted.filter) as facts:
            facts["removed"] = removed = await topic.delete(
                keys=wanted.keys, data=wanted.data, filter=wanted.filter, bookmarks=wanted.bookmarks
            )
    return answered({"removed": removed})


class Withdrawal(BaseModel):
    """A withdrawal of scheduled updates, by one of two ways.

    Attributes:
        filter: an expression that the updates' payloads match.
        bookmarks: bookmarks of the updates.
    """

    model_config = ConfigDict(extra="forbid")

    filter: str | None = None
    bookmarks: list[str] = Field(default_factory=list, max_length=MOST_RECORDS)


async def _scheduled(call: Call) -> Response:
    given = call.parameters
    async with call.gateway.clients.sow(call.caller, call.path["topic"]) as topic:
        found = await topic.scheduled(filter=given["filter"], top_n=given["top_n"], skip=given["skip"])
        return answered({"updates": [dataclasses.asdict(one) for one in found]})


async def _withdraw(call: Call) -> Response:
    wanted = call.decoded(Withdrawal)
    async with call.gateway.clients.sow(call.caller, call.path["topic"]) as topic:
        with call.recording("withdraw updates", call.path["topic"], filter=wanted.filter) as facts:
            facts["withdrawn"] = withdrawn = await topic.withdraw(filter=wanted.filter, bookmarks=wanted.bookmarks)
    return answered({"withdrawn": withdrawn})


_RECORD: Final = obj(
    kind=TEXT,
    partition=WHOLE,
    bookmark={"type": ["string", "null"]},
    timestamp_ms=WHOLE,
    expires_at_ms=INSTANT,
    **payload.MESSAGE,
)
_FILTER: Final = filter_parameter("An expression; only records that match.")
_SELECT: Final = Parameter(
    name="select", description="Only this field, such as /id; -/id leaves it out. May be repeated.", kind="texts"
)

FOLLOWING: Final = (
    _FILTER,
    _SELECT,
    Parameter(
        name="mode",
        description="With the current records first, without them, or changed fields only.",
        choices=_MODES,
        default=_MODES[0],
    ),
)
"""The parameters of `follow`."""

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/sow",
        summary="Name all SOW topics",
        handler=_topics,
        answer=obj(sow=listed(TEXT)),
    ),
    Operation(
        method="GET",
        path="/v1/sow/{topic}",
        summary="Count a SOW topic's records",
        description="With a row filter, only those that match it.",
        handler=_depth,
        answer=obj(topic=TEXT, records=WHOLE, scheduled=WHOLE, dying=WHOLE, subscriptions=WHOLE),
    ),
    Operation(
        method="GET",
        path="/v1/sow/{topic}/records",
        summary="Query a SOW topic",
        description="The current records, none of them expired.",
        handler=_query,
        parameters=(
            _FILTER,
            _SELECT,
            Parameter(
                name="order_by", description="An expression, with ASC or DESC behind it.", if_empty="leave it out"
            ),
            Parameter(
                name="top_n", description="At most so many.", kind="whole", least=1, most=MOST_RECORDS, default=1_000
            ),
            Parameter(
                name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0
            ),
            Parameter(name="key", description="Only this key; may be repeated.", kind="texts"),
        ),
        answer=obj(records=listed(_RECORD)),
    ),
    Operation(
        method="GET",
        path="/v1/sow/{topic}/follow",
        summary="Follow a SOW topic, as server-sent events",
        description=(
            "Events `sow` (a current record), `group-end` (that were all), `publish`, `delta`, `oof` (it was deleted, "
            "has expired or no longer matches) and `resubscribed` (records of this `partition` come again: drop them)."
        ),
        handler=follow,
        parameters=FOLLOWING,
        content="text/event-stream",
    ),
    Operation(
        method="POST",
        path="/v1/sow/{topic}/delete",
        summary="Delete records of a SOW topic",
        handler=_delete,
        model=Deletion,
        answer=obj(removed=WHOLE),
        changes=True,
    ),
    Operation(
        method="GET",
        path="/v1/sow/{topic}/scheduled",
        summary="List the updates of a SOW topic whose instant has not come",
        description="The next ones first, without payloads.",
        handler=_scheduled,
        parameters=(
            filter_parameter("An expression; only updates whose payload matches."),
            Parameter(
                name="top_n", description="At most so many.", kind="whole", least=1, most=MOST_RECORDS, default=1_000
            ),
            Parameter(
                name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0
            ),
        ),
        answer=obj(
            updates=listed(obj(bookmark=TEXT, key=TEXT, change=TEXT, enqueue_at_ms=WHOLE, expires_at_ms=INSTANT))
        ),
    ),
    Operation(
        method="POST",
        path="/v1/sow/{topic}/withdraw",
        summary="Withdraw scheduled updates before they take effect",
        description="Records stay as they are.",
        handler=_withdraw,
        model=Withdrawal,
        answer=obj(withdrawn=WHOLE),
        changes=True,
    ),
)
