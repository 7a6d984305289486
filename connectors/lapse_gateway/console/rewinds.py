"""Forms of the console for rewinds: a preview first, and then the rewind (Q22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from lapse_client.queue.rewind import left_out_text
from lapse_client.reading.count_text import count_text
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import combine_filters
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter
from lapse_gateway.rewinding import Rewind, rewind

_WAIT_S: Final = 15.0
"""How long a page waits for the shards, in seconds. The console's script gives up after 20 s."""


async def _confirm(call: Call) -> Response:
    """Return the preview of a rewind."""
    given, name = call.parameters, call.path["queue"]
    counts = await rewind(call, name, _of(given, dry_run=True), _WAIT_S)
    return rendered(
        call,
        "confirm_rewind.html",
        queue=name,
        given={**given, "id": uuid4().hex},
        rewound=counts.get("rewound", 0),
        left_out=left_out_text(counts),
    )


async def _rewind(call: Call) -> Response:
    counts = await rewind(call, call.path["queue"], _of(sent(call, _FORM)), _WAIT_S)
    return rendered(call, "done.html", outcome=f"{count_text(counts.get('rewound', 0), 'message')} came back.")


def _of(given: Mapping[str, Any], *, dry_run: bool = False) -> Rewind:
    return Rewind(
        to=given["to"],
        filter=combine_filters(given["filter"], given["key"]),
        lifetimes=given["lifetimes"],
        handed_over=given["handed_over"],
        dry_run=dry_run,
        id=given.get("id") or uuid4().hex,
    )


_CHOICE: Final = (
    Parameter(name="to", description="From where on: beginning, an instant or a bookmark.", required=True),
    Parameter(name="filter", description="An expression."),
    Parameter(name="key", description="A key."),
    Parameter(name="lifetimes", description="Whether they count anew.", choices=("new", "kept"), default="new"),
    Parameter(name="handed_over", description="What was handed over, too.", kind="flag", default=False),
)
_FORM: Final = (*_CHOICE, Parameter(name="id", description="Names the rewind.", required=True))

OPERATIONS: Final = (
    page("/console/queues/{queue}/rewind/confirm", "What a rewind would do", _confirm, *_CHOICE, part=True),
    action("/console/queues/{queue}/rewind", "Bring messages back", _rewind),
)
