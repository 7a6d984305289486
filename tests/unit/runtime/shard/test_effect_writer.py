"""Two steps may be written at a time, and their events stand in the order of the steps."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.shard.effect_writer import EffectWriter
from lapse.runtime.shard.effects import Effects


class Store:
    """A journal whose first confirmation takes long."""

    last_timestamp_ms = None

    def __init__(self) -> None:
        self.may_confirm = asyncio.Event()
        self._asked = 0

    async def confirm(self, partition: int) -> None:
        self._asked += 1
        if self._asked == 1:
            await self.may_confirm.wait()

    async def commit(self, *_: object) -> int:
        return 0


class Log:
    """The topic of the events, and the deliveries, of which there are none."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    async def send(self, outputs: Iterable[Output | Packed], *_: object) -> list[asyncio.Future[Any]]:
        self.values += [one.value for one in outputs if isinstance(one, Output)]
        return []

    async def collect(self, step: int) -> None:
        pass

    def expect(self, step: int, decided: float | None) -> None:
        pass

    def progress(self, step: int) -> Mapping[str, Any]:
        return {}


def effects_with(value: bytes) -> Effects:
    return Effects(before=[Output("lapse.events.orders", 0, None, value, [])])


@pytest.mark.feature("D4", "X10")
def test_events_of_a_step_stand_behind_those_of_the_step_before() -> None:
    async def write() -> list[bytes | None]:
        store, log = Store(), Log()
        parts: dict[str, Any] = {"store": store, "producer": log, "deliveries": log}
        parts |= {"topics": SimpleNamespace(absent={}, facts={}), "watch": SimpleNamespace(check=bool, session_s=0)}
        writer = EffectWriter(partition=0, epoch=1, letters=None, clock=None, figures=None, **parts)  # type: ignore[arg-type]
        writer._journaled_at = float("inf")  # its journals are of no concern here
        writer.confirm = lambda: store.confirm(0)  # type: ignore[method-assign]  # as after a while without a journal
        first = asyncio.create_task(writer.write(effects_with(b"first"), {}, None))
        second = asyncio.create_task(writer.write(effects_with(b"second"), {}, None, first))
        for _ in range(10):
            await asyncio.sleep(0)
        store.may_confirm.set()
        await asyncio.gather(first, second)
        return log.values

    assert asyncio.run(write()) == [b"first", b"second"]


@pytest.mark.feature("C1", "Q16")
def test_a_step_without_changes_is_journaled_before_it_is_answered_if_a_command_was_carried_out() -> None:
    happened: list[str] = []

    class Noting(Log):
        async def send(self, *_: object) -> list[asyncio.Future[Any]]:
            happened.append("answer")
            return []

    class Journal(Store):
        async def commit(self, *_: object) -> int:
            happened.append("journal")
            return 0

    async def write(has_acted: bool) -> list[str]:
        happened.clear()
        figures: Any = SimpleNamespace(journal_bytes=0, stages=defaultdict(lambda: SimpleNamespace(add=bool)))
        parts: dict[str, Any] = {"store": Journal(), "producer": Noting(), "deliveries": Noting(), "figures": figures}
        parts |= {"topics": SimpleNamespace(absent={}, facts={}), "watch": SimpleNamespace(check=bool, session_s=0)}
        writer = EffectWriter(partition=0, epoch=1, letters=None, clock=None, **parts)  # type: ignore[arg-type]
        writer._journaled_at = float("inf")  # a moment ago
        answer = Output("lapse.orders.deliveries", 0, None, b"", [])
        await writer.write(Effects(after=[answer], has_acted=has_acted), {}, None)
        return list(happened)

    assert asyncio.run(write(True)) == ["journal", "answer"]
    assert asyncio.run(write(False)) == ["answer"]
