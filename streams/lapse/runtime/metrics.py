"""Exports a worker's figures to Prometheus, with a registry and an HTTP endpoint of its own (D, L13, Q15).

The shards count in plain numbers, step by step. Only a request turns these into metrics, and looks up current values.
That happens on the event loop, so that no lock is needed. Labels are entities, shard numbers and words of closed
vocabularies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from typing import Final

from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lapse.core.reason import Reason
from lapse.protocol.answer import HELD_UP
from lapse.protocol.command_field import QUEUE_STATES
from lapse.runtime import health
from lapse.runtime.endpoint import Endpoint
from lapse.runtime.shard.figures import Distribution, ShardFigures
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.served_entity import Entity
from lapse.runtime.timers.clock import WorkerClock

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 5.0
_OLDEST_WITHIN_S: Final = 1.0
"""How long to wait for the records of the oldest messages, s. All other figures are known without a broker."""

_SHARD: Final = ("entity", "shard")
_COUNTED: Final = {
    "arrived": ("lapse_arrivals", "Records of underlying topics that were taken in."),
    "delivered": ("lapse_deliveries", "Messages handed to subscriptions."),
    "delivered_at_most_once": ("lapse_deliveries_at_most_once", "Messages that left as they were delivered (Q6)."),
    "acknowledged": ("lapse_acknowledgments", "Messages that were acknowledged."),
    "cancelled": ("lapse_cancels", "Messages that were cancelled."),
    "lease_returned": ("lapse_lease_returns", "Messages whose lease ended unsettled."),
    "renewed": ("lapse_renewals", "Messages whose lease was renewed."),
    "transferred": ("lapse_transfers", "Messages that left for another deployment (Q17)."),
    "deleted": ("lapse_sow_deletes", "Records that were deleted from a SOW topic."),
    "sow_messages": ("lapse_sow_messages", "Messages to subscribers and askers of a SOW topic."),
}


@dataclass(frozen=True, slots=True)
class _Row:
    """The figures of one shard at a request.

    Attributes:
        shard: its entity and its number.
        machine: its machine.
        gauges: its current values.
        oldest_age_s: age of its oldest message, s; None if the log with that message does not answer.
    """

    shard: tuple[str, str]
    machine: Machine
    gauges: Mapping[str, int]
    oldest_age_s: float | None


class Figures(Collector):
    """Turns the counts of the shards into metrics when Prometheus asks.

    Args:
        entities: the entities, by name.
        clock: the broker's clock.
        look: returns whether the worker serves what it should.
        loop: the loop of the shards.
    """

    def __init__(
        self,
        entities: Mapping[str, Entity],
        clock: WorkerClock,
        look: Callable[[], health.Readiness],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._entities = entities
        self._clock = clock
        self._look = look
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because the metrics depend on the shards."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Ask the event loop, and wait a few seconds at most."""
        future = asyncio.run_coroutine_threadsafe(self._gather(), self._loop)
        try:
            return future.result(_PATIENCE_S)
        except Late:
            future.cancel()
            logger.warning("metrics: the event loop did not answer within %.0f s", _PATIENCE_S)
            return ()

    async def _gather(self) -> list[Metric]:
        shards: list[tuple[tuple[str, str], Machine, int]] = []
        gauges: list[Mapping[str, int]] = []
        for entity in list(self._entities.values()):
            for partition, runner in list(entity.runners.items()):
                await asyncio.sleep(0)  # a turn for others: there may be many shards
                if entity.runners.get(partition) is runner:
                    shards.append(((entity.name, str(partition)), runner.machine, self._clock.stamp_ms()))
                    gauges.append(runner.machine.gauges(shards[-1][2]))
        ages_s = await asyncio.gather(*(_oldest_age_s(machine, now_ms) for _, machine, now_ms in shards))
        rows = [
            _Row(shard, machine, figures, age_s)
            for (shard, machine, _), figures, age_s in zip(shards, gauges, ages_s, strict=True)
        ]
        return [
            *self._current_values(rows),
            *_counts(rows),
            *_distributions(rows),
            *self._rules(rows),
            *self._worker_values(),
        ]

    def _current_values(self, rows: list[_Row]) -> Iterator[Metric]:
        """Yield current values."""
        messages = GaugeMetricFamily("lapse_queue_messages", "Messages by state (Q15).", labels=[*_SHARD, "state"])
        oldest = GaugeMetricFamily("lapse_queue_oldest_age_seconds", "Age of the first message.", labels=_SHARD)
        paused = GaugeMetricFamily("lapse_queue_paused", "1 while deliveries are held back (C21).", labels=_SHARD)
        held_up = GaugeMetricFamily(
            "lapse_queue_held_up", "Messages, letters and groups that wait (C48, C87, Q15).", labels=[*_SHARD, "what"]
        )
        holders = GaugeMetricFamily("lapse_queue_holders", "Subscriptions that have leased messages.", labels=_SHARD)
        most = GaugeMetricFamily("lapse_queue_most_leased", "Most that one subscription has leased.", labels=_SHARD)
        subscriptions = GaugeMetricFamily("lapse_subscriptions", "Open subscriptions.", labels=_SHARD)
        records = GaugeMetricFamily("lapse_sow_records", "Records of a SOW topic.", labels=_SHARD)
        segments = GaugeMetricFamily("lapse_queue_segments", "Segments by where they are.", labels=[*_SHARD, "place"])
        loads = CounterMetricFamily("lapse_queue_segment_loads", "Segments read back from disk.", labels=_SHARD)
        waiting = GaugeMetricFamily(
            "lapse_letters_waiting", "Dead letters on their way, and refused ones.", labels=_SHARD
        )
        for row in rows:
            shard, gauges = row.shard, row.gauges
            for state in QUEUE_STATES:
                if state in gauges:
                    messages.add_metric([*shard, state], gauges[state])
            if "records" in gauges:
                records.add_metric(shard, gauges["records"])
            else:
                if row.oldest_age_s is not None:
                    oldest.add_metric(shard, row.oldest_age_s)
                paused.add_metric(shard, gauges["paused"])
                for what in HELD_UP:
                    held_up.add_metric([*shard, what], gauges.get(what, 0))
                holders.add_metric(shard, gauges["holders"])
                most.add_metric(shard, gauges["most_leased"])
                for place in ("memory", "disk"):
                    segments.add_metric([*shard, place], gauges[f"segments_{place}"])
                loads.add_metric(shard, gauges["segment_loads"])
            subscriptions.add_metric(shard, gauges["subscriptions"])
            waiting.add_metric(shard, row.machine.figures.letters_waiting + gauges["dying"])
        skew = GaugeMetricFamily("lapse_clock_offset_seconds", "The broker's clock less this machine's (L13).")
        skew.add_metric([], self._clock.skew_ms / 1000)
        yield from (messages, oldest, paused, held_up, holders, most)
        yield from (subscriptions, records, segments, loads, waiting, skew)

    def _worker_values(self) -> Iterator[Metric]:
        """Yield the values of the worker as a whole."""
        found = self._look()
        shards = GaugeMetricFamily(
            "lapse_worker_shards", "Shards that the worker was given, and serves.", labels=["state"]
        )
        shards.add_metric(["assigned"], found.assigned)
        shards.add_metric(["served"], found.served)
        barred = GaugeMetricFamily("lapse_worker_barred_entities", "Entities that cannot be served (C52).")
        barred.add_metric([], len(found.barred))
        added = GaugeMetricFamily(
            "lapse_added_partitions",
            "Partitions of an underlying topic beyond the entity's shards (C81).",
            labels=["entity", "topic"],
        )
        unread = GaugeMetricFamily(
            "lapse_unread_records",
            "Records in added partitions that no shard reads (C81).",
            labels=["entity", "topic"],
        )
        for name, topics in found.added.items():
            for topic, count in topics.items():
                added.add_metric([name, topic], count)
                unread.add_metric([name, topic], self._entities[name].unread.get(topic, 0))
        missing = GaugeMetricFamily(
            "lapse_missing_topics",
            "1 for a topic that an entity names and that is missing.",
            labels=["entity", "topic"],
        )
        for entity in self._entities.values():
            for topic in entity.missing if entity.runners else ():
                missing.add_metric([entity.name, topic], 1)
        behind = GaugeMetricFamily(
            "lapse_behind_records", "Records in the log that are not yet in the state of a shard.", labels=["topic"]
        )
        for topic, count in found.behind.items():
            behind.add_metric([topic], count)
        away = GaugeMetricFamily(*health.AWAY_FIGURE)
        away.add_metric([], found.away_s or 0)
        yield from (shards, barred, missing, added, unread, behind, away)

    def _rules(self, rows: list[_Row]) -> Iterator[Metric]:
        """Yield the counts of `on_expire` calls (L15)."""
        calls = CounterMetricFamily("lapse_rule_calls", "Calls of on_expire, by result.", labels=["entity", "result"])
        for entity in self._entities.values():
            if entity.rules.current is not None:
                figures = entity.rules.current.figures
                for result in ("done", "failed", "timed_out"):
                    calls.add_metric([entity.name, result], getattr(figures, result))
        waiting = GaugeMetricFamily("lapse_rule_waiting", "Messages still to be given to on_expire.", labels=_SHARD)
        for row in rows:
            if row.machine.rule is not None:
                waiting.add_metric(row.shard, row.machine.rule.waiting)
        yield from (calls, waiting)


async def _oldest_age_s(machine: Machine, now_ms: int) -> float | None:
    """Return the age of a shard's oldest message, s; 0 without one, None if the log does not answer in time."""
    try:
        async with asyncio.timeout(_OLDEST_WITHIN_S):
            oldest_ms = await machine.oldest_ms(now_ms)
    except (KafkaError, TimeoutError) as error:
        logger.debug("metrics: the age of the oldest message is not known: %r", error)
        return None
    return 0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000


def _counts(rows: list[_Row]) -> Iterator[Metric]:
    """Yield the counts since this worker took each shard over."""
    for kind, (name, text) in _COUNTED.items():
        family = CounterMetricFamily(name, text, labels=_SHARD)
        for row in rows:
            if kind in row.machine.figures.counts:
                family.add_metric(row.shard, row.machine.figures.counts[kind])
        yield family
    removed = CounterMetricFamily(
        "lapse_removals", "Messages that left, by reason; under each of several.", labels=[*_SHARD, "reason"]
    )
    letters = CounterMetricFamily("lapse_dead_letters", "Dead letters written.", labels=_SHARD)
    refused = CounterMetricFamily("lapse_refused_commands", "Commands answered with an error.", labels=_SHARD)
    denied = CounterMetricFamily(
        "lapse_denied_commands", "Commands that their sender may not give, by cause (X4).", labels=[*_SHARD, "cause"]
    )
    journal = CounterMetricFamily("lapse_journal_bytes", "Bytes written to the journal.", labels=_SHARD)
    for row in rows:
        shard, figures = row.shard, row.machine.figures
        for reason in Reason:
            removed.add_metric([*shard, reason.value], figures.removals[reason])
        letters.add_metric(shard, figures.dead_letters)
        refused.add_metric(shard, figures.refused_commands)
        for cause, count in figures.denied.items():
            denied.add_metric([*shard, cause], count)
        journal.add_metric(shard, figures.journal_bytes)
    yield from (removed, letters, refused, denied, journal)


_SHOWN: Final = {
    "lateness": ("lapse_expiry_lateness_seconds", "From deadline to removal, of messages that were never delivered."),
    "step_duration": ("lapse_step_duration_seconds", "Duration of a step, its writes included."),
    "tick_lag": ("lapse_tick_lag_seconds", "From a tick's timestamp to the step that it caused."),
}


def _distributions(rows: list[_Row]) -> Iterator[Metric]:
    for attribute, (name, text) in _SHOWN.items():
        family = HistogramMetricFamily(name, text, labels=_SHARD)
        for row in rows:
            values = _values(row.machine.figures, attribute)
            family.add_metric(row.shard, values.buckets(), values.total)
        yield family
    stages = HistogramMetricFamily(
        "lapse_stage_seconds", "Where the time of messages goes, by stage.", labels=[*_SHARD, "stage"]
    )
    for row in rows:
        for stage, values in row.machine.figures.stages.items():
            stages.add_metric([*row.shard, stage], values.buckets(), values.total)
    yield stages


def _values(figures: ShardFigures, attribute: str) -> Distribution:
    found: Distribution = getattr(figures, attribute)
    return found


class MetricsServer:
    """Serves figures and health at the worker's endpoint.

    Args:
        entities: the entities, by name.
        clock: the broker's clock.
        look: returns whether the worker serves what it should.

    Attributes:
        endpoint: the endpoint, which may be open already.
    """

    def __init__(
        self, entities: Mapping[str, Entity], clock: WorkerClock, look: Callable[[], health.Readiness]
    ) -> None:
        self._entities = entities
        self._clock = clock
        self._look = look
        self.endpoint = Endpoint()

    def start(self, host: str, port: int) -> None:
        """Serve figures at `http://host:port/metrics`, and `/health` and `/ready`, for the shards of the running loop.

        Args:
            host: the address, if the endpoint is not open yet.
            port: its port; 0 for none.
        """
        self.endpoint.open(host, port)
        registry = CollectorRegistry()
        loop = asyncio.get_running_loop()
        registry.register(Figures(self._entities, self._clock, self._look, loop))
        self.endpoint.serve(health.with_health_paths(make_wsgi_app(registry), self._look, loop))

    def stop(self) -> None:
        """Stop serving."""
        self.endpoint.close()
