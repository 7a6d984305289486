"""Rewinds over HTTP: they bring back messages that have left a queue, or count them (Q22)."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.responses import Response

from lapse.protocol.command_field import MOST_NAME_CHARACTERS
from lapse_client.error import AnswerTimeout, ConnectionFailed
from lapse_client.queue.rewind import point
from lapse_gateway.body import quote_start
from lapse_gateway.fault import Fault
from lapse_gateway.operation import TEXT, WHOLE, Call, Operation, answered, obj

_WAIT_S: Final = 60.0
"""How long a request waits for the shards, in seconds. The rewind goes on after that."""


def _point(to: object) -> object:
    """Check that a beginning is a whole number or a text, whose form is checked later."""
    if isinstance(to, bool) or not isinstance(to, int | str):
        raise ValueError(f"expected beginning, an instant or a bookmark, not {quote_start(to)}")
    return to


class Rewind(BaseModel):
    """A rewind of a queue.

    Attributes:
        to: where to begin: `beginning`, an instant (ms since the epoch, or ISO 8601) or a bookmark.
        filter: an expression for the messages to bring back; None = all.
        lifetimes: `new`: relative lifetimes count from now; `kept`: deadlines stay as they were.
        handed_over: whether to bring back messages that were handed over or forwarded, too.
        dry_run: whether to count only.
        id: id of the rewind. A rewind with the same id is resumed, and never done twice. New by default.
    """

    model_config = ConfigDict(extra="forbid")

    to: Annotated[int | str, BeforeValidator(_point)]
    filter: str | None = None
    lifetimes: Literal["new", "kept"] = "new"
    handed_over: bool = False
    dry_run: bool = False
    id: str = Field(default_factory=lambda: uuid4().hex, min_length=1, max_length=MOST_NAME_CHARACTERS)


async def rewind(call: Call, name: str, wanted: Rewind, wait_s: float) -> dict[str, int]:
    """Carry out a rewind and write an audit record, or count what it would do.

    Args:
        call: the request.
        name: name of the queue.
        wanted: the rewind.
        wait_s: how long to wait for the shards, in seconds.

    Returns:
        The number of `rewound` messages, and of records that were left out, by cause.

    Raises:
        Fault: the shards have not finished in time; the text says how to ask again.
        LapseError: a shard refused.
        ValueError: the beginning is not valid.
    """
    to = point(str(wanted.to))
    facts = {"to": to, "filter": wanted.filter, "lifetimes": wanted.lifetimes, "handed_over": wanted.handed_over}
    async with call.gateway.clients.queue(call.caller, name) as queue:

        async def rewound() -> dict[str, int]:
            return await queue.rewind(
                to,
                filter=wanted.filter,
                lifetimes=wanted.lifetimes,
                handed_over=wanted.handed_over,
                dry_run=wanted.dry_run,
                command_id=wanted.id,
                timeout_s=wait_s,
            )

        if wanted.dry_run:
            return await rewound()
        try:
            with call.recording("rewind", name, **facts, id=wanted.id, counts=None) as outcome:
                outcome["counts"] = counts = await rewound()
        except AnswerTimeout as error:
            raise Fault("no_answer", f"{error}. The rewind goes on; look again with the id {wanted.id}") from error
        except ConnectionFailed as error:
            raise Fault("no_connection", f"{error}. Look again with the id {wanted.id}") from error
    return counts


async def _rewind(call: Call) -> Response:
    wanted = call.decoded(Rewind)
    return answered({"id": wanted.id, **await rewind(call, call.path["queue"], wanted, _WAIT_S)})


OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/queues/{queue}/rewind",
        summary="Bring back messages that have left",
        description=(
            "As far as Kafka still has their records. What is live stays as it is. `dry_run` only counts. The same "
            "`id` again is answered with what was done."
        ),
        handler=_rewind,
        model=Rewind,
        answer=obj(
            id=TEXT,
            rewound=WHOLE,
            live=WHOLE,
            elsewhere=WHOLE,
            repeated=WHOLE,
            dead_on_arrival=WHOLE,
            not_here=WHOLE,
            no_match=WHOLE,
            expired=WHOLE,
            invalid_lifetime=WHOLE,
        ),
        changes=True,
    ),
)
