"""The first page: what needs attention, and an overview of all queues and SOW topics, fifty at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from starlette.responses import Response

from lapse.core.entitlement import NOTHING
from lapse_gateway import looking
from lapse_gateway.console import deployments
from lapse_gateway.console.page import rendered
from lapse_gateway.console.route import page
from lapse_gateway.console.watch import FIRST_S, PATIENCE_S, STATES, TOPIC_FIGURES, Look
from lapse_gateway.figures import RATES
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

_SHOWN: Final = 50
"""The most queues, and the most SOW topics, on a page."""

_NEEDS: Final = 20
"""The most needs that are shown. Further ones are counted."""

_NAMES: Final = 8
"""The most queues that are named for one need. Further ones are counted."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs attention.

    Attributes:
        text: description of the need.
        of: the entities that have it, each as kind and name.
        key: id of the need within the page.
    """

    text: str
    of: list[tuple[str, str]]
    key: str


def group_needs(needs: Iterable[tuple[str, str, str]]) -> list[Need]:
    """Group needs, given as kind, name and text, by their texts, in the order of the first ones."""
    found: dict[str, list[tuple[str, str]]] = {}
    for kind, name, text in needs:
        found.setdefault(text, []).append((kind, name))
    return [Need(text, of, f"{crc32(text.encode()):x}") for text, of in found.items()]


async def _overview(call: Call) -> Response:
    return rendered(call, "overview.html", **await _glance(call, FIRST_S))


async def _live(call: Call) -> Response:
    return rendered(call, "overview_live.html", **await _glance(call))


async def _glance(call: Call, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    given, figures = call.parameters, call.gateway.figures
    known = await call.gateway.entities.look(patience_s)
    queues, topics = (looking.seen(call, known, sow=sow) for sow in (False, True))
    found = _matching_names(queues, given["find"])
    shown = found[given["skip"] : given["skip"] + _SHOWN]
    sow = _matching_names(topics, given["find"])
    # With a row filter a shard must look at every record to count them, so these users see no counts.
    counted = [name for name in topics if not (call.caller.entitlement(name) or NOTHING).filter]
    looks, of_topics, _, beside = await asyncio.gather(
        call.gateway.watch.look(call.caller, queues, frozenset(shown), patience_s),
        call.gateway.topics.look(call.caller, counted, frozenset(sow[:_SHOWN]), patience_s),
        figures.look(patience_s),
        deployments.others(call, FIRST_S),
    )
    by_name = {look.name: look for look in looks}
    topics_by_name = {look.name: look for look in of_topics}
    lacking = {name: figures.needs(name) for name in (*found, *sow) if call.caller.sees_whole(name)}
    needs = [("queues", name, text) for name in found for text in lacking.get(name, ())]
    needs += [("sow", name, text) for name in sow for text in lacking.get(name, ())]
    needs += [("queues", name, text) for name in found for text in by_name[name].needs]
    needs += [("sow", name, text) for name in sow if name in topics_by_name for text in topics_by_name[name].needs]
    grouped = group_needs(needs)
    counts = {name: {state: by_name[name].figures.get(state, 0) for state in STATES} for name in found}
    return {
        "given": given,
        "size": _SHOWN,
        "looks": [by_name[name] for name in shown],
        "totals": {state: sum(one[state] for one in counts.values()) for state in STATES},
        "most": max((sum(counts[name].values()) for name in shown), default=0),
        "found": len(found),
        "total": len(queues),
        "answered": sum(bool(by_name[name].figures) for name in found),
        "needs": grouped[:_NEEDS],
        "more_needs": max(0, len(grouped) - _NEEDS),
        "names_shown": _NAMES,
        "topics": [topics_by_name.get(name) or Look(name) for name in sow[:_SHOWN]],
        "topic_figures": TOPIC_FIGURES,
        "more_topics": max(0, len(sow) - _SHOWN),
        "states": STATES,
        "rates": RATES if figures.known else (),
        "per_s": {name: figures.of(name).per_s for name in (*shown, *sow[:_SHOWN]) if call.caller.sees_whole(name)},
        "silent": figures.faults,
        "others": beside,
    }


def _matching_names(names: Sequence[str], text: str | None) -> Sequence[str]:
    """Return the names that contain a text, ignoring case."""
    wanted = (text or "").strip().lower()
    return [name for name in names if wanted in name.lower()] if wanted else names


_FIND: Final = (
    Parameter(name="find", says="Only names with this in them."),
    Parameter(name="skip", says="So many are left out first.", kind="whole", most=1_000_000_000, default=0),
)

OPERATIONS: Final = (
    page("/", "Queues and SOW topics at a glance", _overview, *_FIND),
    page("/console/live", "The same, to refresh it", _live, *_FIND, part=True),
)
