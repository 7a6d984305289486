"""Settling over HTTP: acknowledge, cancel, expire and renew, by receipts, by bookmarks or by a filter (Q8, C16)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command_field import MOST_NAME_CHARACTERS
from lapse_client import Delivery, SettlementResult
from lapse_gateway.fault import Fault
from lapse_gateway.operation import TEXT, WHOLE, Call, Operation, answered, listed, obj
from lapse_gateway.subscription import Subscription

HEADER: Final = "lapse-receipt"
_LONGEST_MS: Final = (1 << 53) - 1

How = Literal["acknowledge", "cancel", "expire", "renew"]


class Settlement(BaseModel):
    """A settlement of messages.

    Attributes:
        receipts: receipts of deliveries, or bookmarks and ranges, `topic:partition:first[-last][#count[@epoch]]`.
        filter: an expression for the messages, instead of receipts. Not for renew.
        delay_ms: for cancel: delay before the next delivery, in ms.
        lease_ms: for renew: length of the lease from now, in ms; None = the queue's lease period.
        fault: for expire: what is wrong with the messages, for their dead letters.
    """

    model_config = ConfigDict(extra="forbid")

    receipts: list[str] = Field(default_factory=list, max_length=10_000)
    filter: str | None = None
    delay_ms: int | None = Field(default=None, ge=0, le=_LONGEST_MS)
    lease_ms: int | None = Field(default=None, ge=1, le=_LONGEST_MS)
    fault: str | None = Field(default=None, max_length=MOST_NAME_CHARACTERS)


async def _settle(how: How, call: Call) -> Response:
    given = call.request.headers.getlist(HEADER)
    if len(given) > 1:
        raise Fault(ErrorCode.INVALID_ARGUMENT, f"header Lapse-Receipt: is given {len(given)} times; give it once")
    by_header = given[0] if given else None
    wanted = call.decoded(Settlement) if call.body or by_header is None else Settlement()
    if by_header is not None:
        if wanted.receipts or wanted.filter is not None:
            raise Fault(ErrorCode.INVALID_ARGUMENT, "name the receipt in the header or in the body, not in both")
        wanted.receipts = [by_header]
    _check(how, wanted)
    results = await _results(how, call, wanted)
    if by_header is not None and not results[0].settled:
        raise Fault("not_settled", f"{how}: {results[0].messages} is {results[0].result}")
    answers = [{"messages": str(one.messages), "result": one.result} for one in results]
    return answered({"settled": sum(len(one.messages) for one in results if one.settled), "results": answers})


def _check(how: How, wanted: Settlement) -> None:
    if bool(wanted.receipts) is (wanted.filter is not None):
        raise Fault(ErrorCode.INVALID_ARGUMENT, f"{how}: name either receipts or a filter")
    if how == "renew" and wanted.filter is not None:
        raise Fault(ErrorCode.INVALID_ARGUMENT, "renew: name receipts; only its holder renews a lease")
    for field, only in (("delay_ms", "cancel"), ("lease_ms", "renew"), ("fault", "expire")):
        if getattr(wanted, field) is not None and how != only:
            raise Fault(ErrorCode.INVALID_ARGUMENT, f"field {field}: it goes with {only}, not with {how}")


async def _results(how: How, call: Call, wanted: Settlement) -> list[SettlementResult]:
    subscriptions = call.gateway.subscriptions.of(call.caller, call.path["queue"])
    if how == "renew":
        return await _renew(subscriptions, wanted)
    # First, because a wrong name is refused. Then no subscription has lost a delivery.
    elsewhere = _parsed(name for name in wanted.receipts if not any(name in one.held for one in subscriptions))
    results = await _settle_at_queue(how, call, wanted, elsewhere.values(), wanted.filter)
    here = [name for name in wanted.receipts if name not in elsewhere]
    held, others = _held_by_subscription(how, subscriptions, here)
    settled = await _settle_held(how, held, wanted)
    return [*settled, *results, *await _settle_at_queue(how, call, wanted, others.values())]


async def _renew(subscriptions: Sequence[Subscription], wanted: Settlement) -> list[SettlementResult]:
    held, others = _held_by_subscription("renew", subscriptions, wanted.receipts)
    if not held:
        raise Fault(
            ErrorCode.UNKNOWN_SUBSCRIPTION,
            f"renew: {next(iter(others))} is held by no subscription of this gateway: "
            "its lease is over, or another one has it",
        )
    return [*await _settle_held("renew", held, wanted), *map(_not_held, others.values())]


async def _settle_held(
    how: How, held: Iterable[tuple[Subscription, list[Delivery]]], wanted: Settlement
) -> list[SettlementResult]:
    results: list[SettlementResult] = []
    for subscription, deliveries in held:
        results += await subscription.subscriber.settle(
            how, deliveries, wait=True, delay_ms=wanted.delay_ms, lease_ms=wanted.lease_ms, fault=wanted.fault or ""
        )
    return results


async def _settle_at_queue(
    how: How, call: Call, wanted: Settlement, names: Collection[BookmarkRange], expression: str | None = None
) -> list[SettlementResult]:
    """Settle messages that no subscription of this gateway holds, by bookmarks or by a filter."""
    if not names and expression is None:
        return []
    async with call.gateway.clients.queue(call.caller, call.path["queue"]) as client:
        return await client.settle(how, names, filter=expression, delay_ms=wanted.delay_ms, fault=wanted.fault or "")


def _parsed(receipts: Iterable[str]) -> dict[str, BookmarkRange]:
    """Parse receipts, each once.

    Raises:
        ValueError: one is not a bookmark.
    """
    return {name: BookmarkRange.parse(name) for name in dict.fromkeys(receipts)}


def _not_held(receipt: BookmarkRange) -> SettlementResult:
    """Return the result of renewing what no subscription of this gateway holds. It keeps no other from its renewal."""
    messages = replace(receipt, delivery_count=None, epoch=None)
    return SettlementResult(messages, "not_holder")


def _held_by_subscription(
    how: How, subscriptions: Sequence[Subscription], receipts: Iterable[str]
) -> tuple[list[tuple[Subscription, list[Delivery]]], dict[str, BookmarkRange]]:
    """Return the held deliveries of receipts by subscription, and the receipts that no subscription holds.

    Unless they are renewed, the deliveries are removed from their subscriptions. So a second request about the same
    delivery asks the queue.

    Raises:
        ValueError: a receipt that no subscription holds is not a bookmark. Then nothing was removed.
    """
    others = dict.fromkeys(receipts)
    named: list[tuple[Subscription, list[str]]] = []
    for subscription in subscriptions:
        held = [name for name in others if name in subscription.held]
        for name in held:
            del others[name]
        if held:
            named.append((subscription, held))
    elsewhere = _parsed(others)
    found: list[tuple[Subscription, list[Delivery]]] = []
    for subscription, held in named:
        take = subscription.held.__getitem__ if how == "renew" else subscription.held.pop
        found.append((subscription, [take(name) for name in held]))
    return found, elsewhere


_SUMMARIES: Final[dict[How, tuple[str, str]]] = {
    "acknowledge": ("Messages are done", "They leave the queue."),
    "cancel": (
        "Messages return to the queue",
        "To their place, after `delay_ms` if given; scheduled ones are withdrawn.",
    ),
    "expire": ("Messages leave now", "To the dead letters, with the reason `forced_expire` and the text `fault`."),
    "renew": (
        "Leases last longer",
        "From now on, `lease_ms` or the queue's period; through the gateway that delivered.",
    ),
}
_BY: Final = (
    " By `receipts` or a `filter` in the body: the status is 200, and each result says what became of it. Or by one "
    "receipt in the header `Lapse-Receipt`: the status is 409 where it did not take effect."
)

OPERATIONS: Final = tuple(
    Operation(
        method="POST",
        path=f"/v1/queues/{{queue}}/{how}",
        summary=summary,
        description=description + _BY,
        handler=functools.partial(_settle, how),
        model=Settlement,
        optional_body=True,
        headers={"Lapse-Receipt": "One receipt, instead of a body."},
        answer=obj(settled=WHOLE, results=listed(obj(messages=TEXT, result=TEXT))),
        changes=True,
    )
    for how, (summary, description) in _SUMMARIES.items()
)
