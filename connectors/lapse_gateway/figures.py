"""Figures of entities from workers' metrics for Prometheus: rates, lateness, and missing topics."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lapse_gateway.scrape import Source

log = logging.getLogger("lapse_gateway")

RATES: Final = ("in", "out", "expired", "dead", "retried")
"""The rates per second, in the order in which pages show them."""

_FRESH_S: Final = 1.5
"""Figures younger than this are used again, in seconds."""

_PATIENCE_S: Final = 2.5
"""The longest wait of a page for figures, in seconds. Later figures appear on the next page."""

_RATE_S: Final = 10.0
"""Length of the window for rates, in seconds."""

_COUNTERS: Final = {
    "lapse_arrivals_total": "in",
    "lapse_acknowledgments_total": "out",
    "lapse_deliveries_at_most_once_total": "out",
    "lapse_transfers_total": "out",
    "lapse_sow_deletes_total": "out",
    "lapse_dead_letters_total": "dead",
    "lapse_cancels_total": "retried",
    "lapse_lease_returns_total": "retried",
    "lapse_removals_total": "expired",
}
"""The rate to which each counter adds. Of removals, only those by time count."""

_LATENESS: Final = "lapse_expiry_lateness_seconds_bucket"
_MISSING: Final = "lapse_missing_topics"
_SAMPLE: Final = re.compile(
    rf"^({'|'.join([*_COUNTERS, _LATENESS, _MISSING])})\{{([^}}]*)\}} ([0-9.eE+]+)$", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Counts = dict[str, float]
_Key = tuple[str, str, str]
"""A worker's address, an entity and a shard: the source of one counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One bar of a histogram.

    Attributes:
        up_to_s: upper limit of the values, in seconds; None = no limit.
        count: number of values.
    """

    up_to_s: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFigures:
    """The figures of one entity.

    Attributes:
        per_s: messages per second by rate; empty while unknown.
        lateness: histogram of the time from deadline to removal, since the take-over of the shards.
    """

    per_s: Mapping[str, float] = field(default_factory=dict)
    lateness: Sequence[Band] = ()

    @property
    def bands(self) -> Sequence[Band]:
        """The bars up to the last one that is not empty."""
        last = max((number for number, band in enumerate(self.lateness) if band.count), default=-1)
        return self.lateness[: last + 1]


_UNKNOWN: Final = EntityFigures()


class Figures:
    """Reads workers' figures when a page or request needs them.

    Args:
        sources: addresses of workers' figures.
    """

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self._sources = sources
        self._at_s = -1e9
        self._asking: asyncio.Task[None] | None = None
        self._before: dict[_Key, Counts] = {}
        self._done: defaultdict[str, Counts] = defaultdict(lambda: dict.fromkeys(RATES, 0.0))
        self._seen: deque[tuple[float, dict[str, Counts]]] = deque()
        self._lateness: Mapping[str, Mapping[str, float]] = {}
        self._missing: Mapping[str, set[str]] = {}
        self.faults: Sequence[str] = ()
        """A text for each worker that did not answer."""

    @property
    def known(self) -> bool:
        """Whether there are addresses of workers' figures."""
        return bool(self._sources)

    async def look(self, patience_s: float = _PATIENCE_S) -> None:
        """Refresh figures that are older than `_FRESH_S`. Wait at most `patience_s` seconds for workers."""
        now = asyncio.get_running_loop().time()
        if not self._sources:
            return
        if self._asking is None and now - self._at_s >= _FRESH_S:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=patience_s)

    def of(self, entity: str) -> EntityFigures:
        """Return the figures of an entity."""
        if not self._seen:
            return _UNKNOWN
        return EntityFigures(per_s=self._per_s(entity), lateness=tuple(_bands(self._lateness.get(entity, {}))))

    def needs(self, entity: str) -> list[str]:
        """Return a text for each topic that workers report as missing for an entity."""
        return [
            f"topic {topic} is missing; `lapse apply` creates it" for topic in sorted(self._missing.get(entity, ()))
        ]

    def _per_s(self, entity: str) -> Counts:
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last_s - first_s < 1 or entity not in first:
            return {}
        return {name: (last[entity][name] - first[entity][name]) / (last_s - first_s) for name in RATES}

    async def _ask(self) -> None:
        try:
            readings = await asyncio.gather(*(asyncio.to_thread(source.read) for source in self._sources))
            pages = {name: text for found in readings for name, text in found.pages.items()}
            self.faults = [fault for found in readings for fault in found.faults]
            await asyncio.to_thread(self._note, pages)
            if not pages:
                self._seen.clear()  # the present rates are unknown, not 0
        except Exception:
            log.exception("the workers' figures could not be read")
        finally:
            now = self._at_s = asyncio.get_running_loop().time()
            self._asking = None
            self._seen.append((now, {name: dict(counts) for name, counts in self._done.items()}))
            while len(self._seen) > 2 and self._seen[1][0] <= now - _RATE_S:
                self._seen.popleft()

    def _note(self, pages: Mapping[str, str]) -> None:
        """Add the counts since the last look. A counter that is lower than before has restarted."""
        found: defaultdict[_Key, Counts] = defaultdict(lambda: dict.fromkeys(RATES, 0.0))
        lateness: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        missing: defaultdict[str, set[str]] = defaultdict(set)
        for address, text in pages.items():
            for name, labelled, number in _SAMPLE.findall(text):
                labels = dict(_LABEL.findall(labelled))
                entity = labels.get("entity", "")
                if name == _LATENESS:
                    lateness[entity][labels.get("le", "+Inf")] += float(number)
                elif name == _MISSING:
                    missing[entity].add(labels.get("topic", ""))
                elif labels.get("reason", "time_limit") == "time_limit":
                    found[address, entity, labels.get("shard", "")][_COUNTERS[name]] += float(number)
        for key, counts in found.items():
            before, done = self._before.get(key, counts), self._done[key[1]]
            for name, count in counts.items():
                done[name] += count - before[name] if count >= before[name] else count
        answered = {address for address, _, _ in found}
        kept = {key: counts for key, counts in self._before.items() if key[0] not in answered}
        self._before = {**kept, **found} if len(kept) < _MOST_KEPT else dict(found)
        self._lateness, self._missing = lateness, missing


_MOST_KEPT: Final = 1_000_000
"""The most shards of silent workers whose last counters are kept, in case the workers come back."""


def _bands(buckets: Mapping[str, float]) -> Iterator[Band]:
    """Yield the bars of a histogram from Prometheus's cumulative buckets."""
    below = 0.0
    for end, count in sorted((float(end), count) for end, count in buckets.items()):
        yield Band(up_to_s=None if end == float("inf") else end, count=round(count - below))
        below = count
