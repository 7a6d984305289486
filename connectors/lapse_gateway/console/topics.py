"""The page of a SOW topic with its live records."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from lapse_gateway.console import standing
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import combine_filters
from lapse_gateway.console.route import check_entity, page
from lapse_gateway.console.watch import TOPIC_FIGURES
from lapse_gateway.figures import RATES
from lapse_gateway.operation import Call, Operation
from lapse_gateway.parameter import Parameter
from lapse_gateway.sow import FOLLOWING, follow


async def _topic(call: Call) -> Response:
    name, text = call.path["topic"], call.parameters["filter"] or ""
    await check_entity(call, name, sow=True)
    call.caller.check_read(name)
    combine_filters(text, None)
    return rendered(call, "topic.html", topic=name, filter=text)


async def _live(call: Call) -> Response:
    name, figures = call.path["topic"], call.gateway.figures
    whole = call.caller.sees_whole(name)
    looks, shown, _ = await asyncio.gather(
        call.gateway.topics.look(call.caller, [name] if whole else []), standing.of_topic(call, name), figures.look()
    )
    return rendered(
        call,
        "topic_live.html",
        look=looks[0] if looks else None,
        needs=[*figures.needs(name), *looks[0].needs] if looks else [],
        topic_figures=TOPIC_FIGURES,
        rates=RATES,
        figures=figures.of(name) if whole else None,
        standing=shown,
        most=standing.SHOWN,
    )


async def _follow(call: Call) -> Response:
    return await follow(call, call.gateway.topics.pages)


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/console/sow/{topic}/follow",
        summary="Its records, as server-sent events",
        handler=_follow,
        parameters=tuple(replace(one, if_empty="") for one in FOLLOWING),  # a form sends what is not filled in, too
        content="text/event-stream",
        part=True,
    ),
    page("/console/sow/{topic}/live", "Its figures, to refresh them", _live, part=True),
    page(
        "/console/sow/{topic}",
        "A SOW topic, live",
        _topic,
        Parameter(name="filter", description="An expression; only records that match."),
    ),
)
