"""Receiving over HTTP: by long poll, in JSON or as one raw message, or by a stream of events (Q3, X3)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.responses import Response

from lapse.core.generation import format_position
from lapse_client.aio import Delivery
from lapse_client.error import LapseError
from lapse_gateway import payload
from lapse_gateway.events import event, stream
from lapse_gateway.fault import Fault, fault_of
from lapse_gateway.operation import INSTANT, TEXT, WHOLE, Call, Operation, answered, listed, obj
from lapse_gateway.parameter import Parameter, filter_parameter
from lapse_gateway.subscription import Subscription, Terms, receipt

MOST_BACKLOG: Final = 10_000
LONGEST_WAIT_S: Final = 60

_AT_ONCE: Final = 100
"""The most deliveries that a stream takes at a time."""


def delivery_as_json(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery for JSON."""
    lot, at = delivery.lot, delivery.at
    fields: dict[str, Any] = {"kind": "barrier" if lot.is_barrier else "delivery"}
    if lot.is_barrier:
        fields["bookmark"] = str(delivery.bookmark)
    else:
        fields["receipt"] = receipt(delivery)
        fields["bookmark"] = f"{lot.source.decode()}:{format_position(lot.offsets[at])}"
        fields["delivery_count"] = lot.delivery_counts[at]
        fields["lease_until_ms"] = delivery.lease_until_ms
    fields["timestamp_ms"] = lot.timestamp_ms(at)
    fields["expires_at_ms"] = lot.deadline_ms(at)
    fields.update(payload.message_shown(lot.key(at), lot.headers(at), lot.value(at)))
    return fields


async def _receive(call: Call) -> Response:
    given = call.parameters
    as_it_is = given["format"] == "raw"
    if as_it_is and given["max"] not in (None, 1):
        raise Fault("invalid_argument", "parameter max: a raw answer holds one message; leave max out")
    most = 1 if as_it_is else (given["max"] or 1)
    subscription = await _subscription(call, most)
    try:
        taken = await subscription.take(most, given["wait_s"], call.gone)
        if taken and await call.request.is_disconnected():
            subscription.give_back(taken)  # the caller has disconnected: the next request gets them
    except LapseError:
        await call.gateway.subscriptions.drop(subscription)
        raise
    finally:
        call.gateway.subscriptions.done(subscription)
    if as_it_is:
        return _raw(taken[0]) if taken else Response(status_code=204, headers={"Cache-Control": "no-store"})
    return answered({"messages": [delivery_as_json(delivery) for delivery in taken]})


def _raw(delivery: Delivery) -> Response:
    """Return a raw message: its payload is the body, and everything else is in headers."""
    about: dict[str, object] = {
        "Lapse-Kind": "barrier" if delivery.is_barrier else "delivery",
        "Lapse-Receipt": None if delivery.is_barrier else receipt(delivery),
        "Lapse-Bookmark": delivery.bookmark,
        "Lapse-Delivery-Count": None if delivery.is_barrier else delivery.delivery_count,
        "Lapse-Lease-Until-Ms": delivery.lease_until_ms,
        "Lapse-Timestamp-Ms": delivery.timestamp_ms,
        "Lapse-Expires-At-Ms": delivery.expires_at_ms,
        "Lapse-Key": None if delivery.key is None else payload.in_http_header(delivery.key),
    }
    answer = Response(delivery.value or b"", media_type="application/octet-stream")
    for name, value in about.items():
        if value is not None:
            answer.headers[name] = str(value)
    for name, text in payload.message_headers_in_http(delivery.headers):
        answer.headers.append(name, text)
    answer.headers["Cache-Control"] = "no-store"
    return answer


async def _stream(call: Call) -> Response:
    subscription = await _subscription(call, 1)
    unsent: list[Delivery] = []

    async def end() -> None:
        subscription.give_back(unsent)
        call.gateway.subscriptions.done(subscription)

    return stream(call.gateway, _events(call, subscription, unsent), end)


async def _events(call: Call, subscription: Subscription, unsent: list[Delivery]) -> AsyncGenerator[bytes, None]:
    """Yield the deliveries as events. `unsent` has those that were taken and not sent yet."""
    try:
        while True:
            unsent += await subscription.take(_AT_ONCE, LONGEST_WAIT_S, call.gateway.stopping.wait)
            while unsent:
                delivery = unsent[0]
                kind = "barrier" if delivery.is_barrier else "delivery"
                yield event(kind, delivery_as_json(delivery), "" if delivery.is_barrier else receipt(delivery))
                unsent.pop(0)
    except LapseError as error:
        await call.gateway.subscriptions.drop(subscription)
        yield event("error", fault_of(error).as_dict())


async def _subscription(call: Call, least: int) -> Subscription:
    given = call.parameters
    backlog = given["max_backlog"]
    if backlog is not None and 0 < backlog < least:
        raise Fault("invalid_argument", f"parameter max_backlog: expected {least} or more, which max asks for")
    if given["subscription"] in (".", ".."):
        raise Fault(
            "invalid_argument", "parameter subscription: . and .. cannot stand in an address, and DELETE needs it"
        )
    terms = Terms(max_backlog=backlog, filter=given["filter"], least=least)
    return await call.gateway.subscriptions.get(call.caller, call.path["queue"], given["subscription"], terms)


async def _end(call: Call) -> Response:
    name = call.path["subscription"]
    if not await call.gateway.subscriptions.end(call.caller, call.path["queue"], name):
        raise Fault("unknown_subscription", f"subscription {name[:100]} is not open at this gateway")
    return Response(status_code=204)


_NAME: Final = Parameter(
    name="subscription",
    description="The name of your subscription, such as worker-1. Requests of the same name share what it receives.",
    required=True,
)
_BACKLOG: Final = Parameter(
    name="max_backlog",
    description="Most deliveries that are handed out or waiting, and not settled; 0 = barriers only. By default as "
    "many as the first request takes (a stream: 1).",
    kind="whole",
    most=MOST_BACKLOG,
)
_FILTER: Final = filter_parameter("An expression; only messages that match.")

_DELIVERY: Final = obj(
    kind={"enum": ["delivery", "barrier"]},
    receipt=TEXT,
    bookmark=TEXT,
    delivery_count=WHOLE,
    lease_until_ms=INSTANT,
    timestamp_ms=WHOLE,
    expires_at_ms=INSTANT,
    **payload.MESSAGE,
)

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/queues/{queue}/receive",
        summary="Receive messages, by long poll",
        description=(
            "Waits for the first message, and answers with what there is then. Each message is leased: settle it by "
            "its `receipt` before `lease_until_ms`. With `format=raw` the body is the payload of one message, headers "
            "`Lapse-…` say the rest, and 204 says that there is none."
        ),
        handler=_receive,
        parameters=(
            _NAME,
            Parameter(
                name="max",
                description="Most messages in one answer; 1 by default.",
                kind="whole",
                least=1,
                most=MOST_BACKLOG,
            ),
            Parameter(
                name="wait_s",
                description="How long to wait for the first message, s.",
                kind="number",
                most=LONGEST_WAIT_S,
                default=20,
            ),
            _BACKLOG,
            _FILTER,
            Parameter(name="format", description="The form of messages.", choices=("json", "raw"), default="json"),
        ),
        answer=obj(messages=listed(_DELIVERY)),
        raw=True,
        further={204: "There is no message (`format=raw`)"},
        changes=True,
    ),
    Operation(
        method="GET",
        path="/v1/queues/{queue}/stream",
        summary="Receive messages, as server-sent events",
        description="Events `delivery` and `barrier`; the id of a delivery is its receipt. Settle by POST.",
        handler=_stream,
        parameters=(_NAME, _BACKLOG, _FILTER),
        content="text/event-stream",
        changes=True,
    ),
    Operation(
        method="DELETE",
        path="/v1/queues/{queue}/subscriptions/{subscription}",
        summary="End a subscription",
        description="What it holds returns to the queue at once.",
        handler=_end,
        status=204,
        changes=True,
    ),
)
