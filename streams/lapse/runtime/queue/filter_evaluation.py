"""Judging: finds the messages that match a filter that needs their payloads (Q14, X7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from lapse.core.queue.command import QueueCommands
from lapse.core.queue.inquiry.selection import JUDGED_AT_ONCE
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.protocol.command import Command
from lapse.runtime.shard.command_work import CommandWork, Portion
from lapse.runtime.shard.deaths import STOPPED
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.standing_filter import StandingFilters
from lapse.runtime.shard.under_way import UnderWay

_FIRST: Final = 8
"""The number of messages in the first portion, whose cost is not known yet."""


class FilterEvaluator:
    """Reads payloads and evaluates filters on them, in portions with turns for others in between.

    Args:
        shard: has the filters, and notes which messages match.
        payloads: the records behind the messages.
        under_way: returns the note of the records that are being handled.
        most_at_once: the greatest number of messages that are taken in at once.
    """

    def __init__(
        self, shard: QueueShard, payloads: PayloadWindow, under_way: Callable[[], UnderWay], most_at_once: int
    ) -> None:
        self._shard = shard
        self._payloads = payloads
        self._under_way = under_way
        self._portion = Portion(JUDGED_AT_ONCE, _FIRST)
        self.filters = StandingFilters(most_at_once)
        """The work of subscriptions' filters."""
        shard.matching.measured = self.filters.measured

    async def judge_for_command(
        self, commands: QueueCommands, command: Command, text: str, work: CommandWork, now_ms: int, step: Step
    ) -> None:
        """Judge the messages among which a command's filter, or its user's row filter, chooses.

        Args:
            commands: knows which messages these are.
            command: the command.
            text: the filter.
            work: the limit of the command's work. Judging stops once it is spent.
            now_ms: the instant, ms since the epoch.
            step: gets messages that turn out lost or undecodable.
        """
        for places in commands.places_to_judge(command, text, now_ms):
            await self.places(places, work, now_ms, step)
            if work.is_spent:
                return
        if command.filter:
            await self.unplaced(commands.scheduled_to_judge(command, text), text, work)
        else:
            await self.unplaced(commands.offsets_without_place(command), text)

    async def places(self, places: Sequence[int], work: CommandWork, now_ms: int, step: Step) -> None:
        """Judge messages by their places.

        Args:
            places: places of the messages.
            work: the limit of the work. Judging stops once it is spent.
            now_ms: the instant, ms since the epoch.
            step: gets messages that turn out lost or undecodable.
        """
        by_source: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for place in places:
            bookmark = self._shard.bookmark_of(place)
            if bookmark is not None:
                by_source.setdefault(bookmark[:2], []).append((bookmark[2], place))
        for (topic, partition), some in by_source.items():
            some.sort()
            records = await self._payloads.get(topic, partition, [offset for offset, _ in some], used=False)
            at = 0
            while at < len(some) and not work.is_spent:
                stop = self._portion.end(records, at)
                with work.portion_measured(stop - at, self._portion):
                    self._look_at(
                        [(some[n][1], topic, partition, records[n]) for n in range(at, stop)],
                        [offset for offset, _ in some[at:stop]],
                        now_ms,
                        step,
                    )
                at = stop
                await asyncio.sleep(0)  # after the last portion too: a caller may have hundreds of lots
            lost = [offset for (offset, _), record in zip(some, records, strict=True) if record is None]
            self._shard.remove_truncated(topic, partition, lost, now_ms, step)

    def end_too_costly(self, now_ms: int, step: Step) -> None:
        """End subscriptions whose filters take too much CPU (X7)."""
        for text, refusal in self.filters.too_costly(self._shard.matching.subscribed_filters).items():
            for one in [one for one in self._shard.subscriptions() if one.filter == text]:
                self._shard.subscribing.end_too_costly(one.id, now_ms, step, refusal.text)

    def _look_at(
        self, messages: Sequence[tuple[int, str, int, Any | None]], offsets: Sequence[int], now_ms: int, step: Step
    ) -> None:
        """Evaluate the filters on messages of one source, noted as under way."""
        _, topic, partition, _ = messages[0]
        under_way = self._under_way()
        if not under_way.is_suspect(topic, partition, offsets[0], offsets[-1]):
            with under_way.noted(topic, partition, offsets[0], offsets[-1], again=True):
                self._shard.judge(messages)
            return
        for offset, message in zip(offsets, messages, strict=True):
            aside = under_way.is_set_aside(topic, partition, offset)
            with under_way.noted(topic, partition, offset, offset, again=True):
                self._shard.judge([(*message[:3], None) if aside else message])
            if aside:
                self._shard.remove_undecodable(topic, partition, offset, STOPPED, now_ms, step)

    async def unplaced(
        self, named: Iterable[tuple[str, int, list[int]]], text: str, work: CommandWork | None = None
    ) -> None:
        """Judge messages without a place under one filter, by topic, partition and offsets (X4, C82, C83)."""
        work = work or CommandWork()
        for topic, partition, offsets in named:
            records = await self._payloads.get(topic, partition, offsets, used=False)
            at = 0
            while at < len(offsets):
                if work.is_spent:
                    return
                stop = self._portion.end(records, at)
                with work.portion_measured(stop - at, self._portion):
                    self._look_at_unplaced(topic, partition, offsets[at:stop], records[at:stop], text)
                at = stop
                await asyncio.sleep(0)

    def _look_at_unplaced(
        self, topic: str, partition: int, offsets: list[int], records: Sequence[Any | None], text: str
    ) -> None:
        under_way = self._under_way()
        for offset, record in zip(offsets, records, strict=True):
            # A record that was set aside, because it stops workers, is not evaluated again.
            if record is not None and not under_way.is_set_aside(topic, partition, offset):
                with under_way.noted(topic, partition, offset, offset, again=True):
                    self._shard.judge_bookmarks(text, [(topic, partition, record)])
