"""The open subscriptions of queues and SOW topics over HTTP (Q15)."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from starlette.responses import Response

from lapse_gateway.operation import TEXT, WHOLE, Call, Operation, answered, listed, obj


async def _queue_subscriptions(call: Call) -> Response:
    async with call.gateway.clients.queue(call.caller, call.path["queue"]) as queue:
        return answered({"subscriptions": [dataclasses.asdict(one) for one in await queue.subscriptions()]})


async def _topic_subscriptions(call: Call) -> Response:
    async with call.gateway.clients.sow(call.caller, call.path["topic"]) as topic:
        return answered(
            {"subscriptions": [_without_message_fields(dataclasses.asdict(one)) for one in await topic.subscriptions()]}
        )


def _without_message_fields(facts: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields that a subscription to a SOW topic does not have, because it holds no messages."""
    return {name: fact for name, fact in facts.items() if name not in ("outstanding", "max_backlog", "hangs_since_ms")}


_SUBSCRIPTION: Final = {
    "subscription": TEXT,
    "client": TEXT,
    "since_ms": WHOLE,
    "heard_ms": WHOLE,
    "filter": TEXT,
}

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/queues/{queue}/subscriptions",
        summary="Name who is subscribed, since when, and how many messages each holds",
        description="The oldest first; `heard_ms`: when it was last heard; `hangs_since_ms`: since when it hangs, "
        "because it settles nothing, 0 = it does not hang. It takes `read` without a filter, or `admin`.",
        handler=_queue_subscriptions,
        answer=obj(
            subscriptions=listed(obj(**_SUBSCRIPTION, outstanding=WHOLE, max_backlog=WHOLE, hangs_since_ms=WHOLE))
        ),
    ),
    Operation(
        method="GET",
        path="/v1/sow/{topic}/subscriptions",
        summary="Name who is subscribed to a SOW topic, and since when",
        description="The oldest first. It takes `read` without a filter, or `admin`.",
        handler=_topic_subscriptions,
        answer=obj(subscriptions=listed(obj(**_SUBSCRIPTION))),
    ),
)
