"""The first page: what needs attention, and an overview of all queues and SOW topics, fifty at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from starlette.responses import Response

from lapse.core.entitlement import NOTHING
from lapse_gateway import looking
from lapse_gateway.console import deployments
from lapse_gateway.console.page import rendered
from lapse_gateway.console.route import page
from lapse_gateway.console.watch import FIRST_S, PATIENCE_S, STATES, TOPIC_FIGURES, Look, Watch
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
    """Group needs, given as kind, name and text, by their texts, in the order of the first ones.

    Texts that differ only in the count at their beginning are one need, with the least and the greatest count.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    counts: dict[str, dict[int, str]] = {}
    for kind, name, text in needs:
        match = _COUNTED.match(text)
        sign = f"# {match[2]} {text[match.end() :]}" if match else text
        found.setdefault(sign, []).append((kind, name))
        counts.setdefault(sign, {})[int(match[1].replace(",", "")) if match else 0] = text
    return [Need(_span_text(counts[sign]), of, f"{crc32(sign.encode()):x}") for sign, of in found.items()]


_COUNTED: Final = re.compile(r"([\d,]+) (.+?)s? (?:is|are|waits?)\b")
"""A text that begins with a count, its noun and its verb."""


def _span_text(texts: Mapping[int, str]) -> str:
    """Return one text for texts that differ in the count at their beginning, given by their counts."""
    least, most = min(texts), max(texts)
    return f"{least:,} to {texts[most]}" if least < most else texts[most]


async def _overview(call: Call) -> Response:
    return rendered(call, "overview.html", **await _glance(call, FIRST_S, recent=True))


async def _live(call: Call) -> Response:
    return rendered(call, "overview_live.html", **await _glance(call))


async def _glance(call: Call, patience_s: float = PATIENCE_S, *, recent: bool = False) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        call: the call.
        patience_s: how long to wait for the list of topics, and then for figures, in seconds.
        recent: whether a list of the last seconds is good enough.
    """
    given, figures = call.parameters, call.gateway.figures
    known = await call.gateway.entities.look(patience_s, recent=recent)
    queues, topics = (looking.seen(call, known, sow=sow) for sow in (False, True))
    matching, sow = (_matching_names(names, given["find"]) for names in (queues, topics))
    found = matching
    if given["needs"]:
        found = _needy(call, call.gateway.watch, matching)
        sow = _needy(call, call.gateway.topics, sow)
    shown = found[given["skip"] : given["skip"] + _SHOWN]
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
    lacking = {name: figures.needs(name) for name in (*matching, *sow) if call.caller.sees_whole(name)}
    needs = [("queues", name, text) for name in matching for text in lacking.get(name, ())]
    needs += [("sow", name, text) for name in sow for text in lacking.get(name, ())]
    needs += [("queues", name, text) for name in matching for text in by_name[name].needs]
    needs += [("sow", name, text) for name in sow if name in topics_by_name for text in topics_by_name[name].needs]
    grouped = group_needs(needs)
    counts = {name: {state: by_name[name].figures.get(state, 0) for state in STATES} for name in matching}
    return {
        "given": given,
        "size": _SHOWN,
        "looks": [by_name[name] for name in shown],
        "totals": {state: sum(one[state] for one in counts.values()) for state in STATES},
        "most": max((sum(counts[name].values()) for name in shown), default=0),
        "found": len(matching),
        "listed": len(found),
        "total": len(queues),
        "answered": sum(bool(by_name[name].figures) for name in matching),
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


def _needy(call: Call, watch: Watch, names: Sequence[str]) -> Sequence[str]:
    """Return the names that need attention, as far as the user may know, by the last looks at them."""
    figures, needy = call.gateway.figures, {*watch.needy(call.caller, names)}
    return [name for name in names if name in needy or (call.caller.sees_whole(name) and figures.needs(name))]


def _matching_names(names: Sequence[str], text: str | None) -> Sequence[str]:
    """Return the names that contain a text, ignoring case."""
    wanted = (text or "").strip().lower()
    return [name for name in names if wanted in name.lower()] if wanted else names


_FIND: Final = (
    Parameter(name="find", description="Only names with this in them."),
    Parameter(name="needs", description="Only those that need attention.", kind="flag", default=False),
    Parameter(name="skip", description="So many are left out first.", kind="whole", most=1_000_000_000, default=0),
)

OPERATIONS: Final = (
    page("/", "Queues and SOW topics at a glance", _overview, *_FIND),
    page("/console/live", "The same, to refresh it", _live, *_FIND, part=True),
)
