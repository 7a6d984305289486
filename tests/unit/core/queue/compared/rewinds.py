"""Messages that a rewind brings back (Q22)."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.core.expression import compile_filter
from lapse.core.queue.rewind.rewinding import RewindRequest
from lapse.core.queue.rewind.rewinds import Rewind
from unit.core.queue.compared.restarts import Restarts
from unit.core.queue.expected.message import Published


class Rewinds(Restarts):
    """Brings back what has left, some records at a time."""

    def rewind(
        self,
        *topics: str,
        first: int = 0,
        kept: bool = False,
        handed_over: bool = False,
        text: str = "",
        dry_run: bool = False,
        part: int = 1_000,
        crashes: Iterable[bool] = (),
        name: str = "back",
    ) -> int:
        """Bring back what has left, some records at a time; perhaps the shard is taken over between two of them."""
        falls = iter(crashes)
        if crashes:
            self.commit()
            self.crash()
        there = {
            source: [one for one in records if (*source, one.offset) not in self.lost]
            for source, records in self.topics.items()
        }
        numbers = {topic: self.shard.state.sources.find(topic, 0) for topic in topics}
        firsts = {number: first for number in numbers.values() if number is not None}
        step, matches = self._open(), compile_filter(text) if text else None
        request = RewindRequest(name, self.now_ms, 7, firsts, text, kept, handed_over, dry_run)
        under_way = self.shard.rewinding.begin(request, step)
        self._come_by(under_way, there)
        while not under_way.done:
            runs, cursors = self._next_part(under_way, there, part)
            self.shard.rewinding.bring_back_part(under_way, runs, cursors, matches, step, dry_run=dry_run)
            if next(falls, False) and not under_way.done and not dry_run:
                assert self.shard.room() == 0, "what arrives meanwhile stands behind all of it"
                self.commit()
                self._reopen()
                under_way = self.shard.state.rewinds.under_way
                assert under_way is not None
                self.shard.rewinding.resume()
                self._come_by(under_way, there)
                step = self._open()
        wanted = dict.fromkeys(topics, first)
        count = self.oracle.rewind(
            wanted, there, self.now_ms, kept=kept, handed_over=handed_over, text=text, dry_run=dry_run
        )
        assert under_way.counts["rewound"] == count
        self.did["rewind"] += bool(count) and not dry_run
        if crashes:  # what was told before the last crash was told in other steps
            self.oracle.events = []
            step.events.clear()
            self._heard = 0
        self._compare_outputs()
        self.check()
        if crashes:
            self.commit()  # some parts are durable, and the oracle knows the whole only
        return count

    def _come_by(self, under_way: Rewind, there: dict[tuple[str, int], list[Published]]) -> None:
        for number, span in under_way.spans.items():
            source = self.shard.state.sources[number]
            before = [one for one in there[source.topic, source.partition] if one.offset < span.cursor]
            if before:
                self.shard.rewinding.remember(number, before)

    def _next_part(
        self, under_way: Rewind, there: dict[tuple[str, int], list[Published]], part: int
    ) -> tuple[list[tuple[int, list[Published]]], dict[int, int]]:
        """The next records of all sources: that whose first one is the oldest comes first."""
        waiting = {
            number: [
                one for one in there[self.shard.state.sources[number].topic, 0] if span.cursor <= one.offset < span.stop
            ]
            for number, span in under_way.spans.items()
        }
        runs: list[tuple[int, list[Published]]] = []
        while part and any(waiting.values()):
            part -= 1

            def turn(number: int) -> tuple[int, str, int]:
                source = self.shard.state.sources[number]
                return waiting[number][0].timestamp, source.topic, source.partition

            number = min((one for one in waiting if waiting[one]), key=turn)
            record = waiting[number].pop(0)
            if runs and runs[-1][0] == number:
                runs[-1][1].append(record)
            else:
                runs.append((number, [record]))
        cursors = {
            number: waiting[number][0].offset if waiting[number] else span.stop
            for number, span in under_way.spans.items()
        }
        return runs, cursors
