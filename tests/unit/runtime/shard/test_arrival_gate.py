"""Scheduled messages wait for the ends of the logs, and nothing else waits with them (C76, L11)."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.runtime.shard.gate import ArrivalGate
from lapse.runtime.shard.log import SilentLog
from lapse.runtime.tp import TP
from support.suite.event_loop import finished

ORDERS = TP("orders", 0)


@pytest.mark.feature("C76", "L11", "C52")
def test_a_partition_without_a_leader_is_asked_again_and_the_shard_goes_on() -> None:
    """The question ends with an error after 40 s. The shard was given up then, with its leases and deadlines."""
    answers: list[Exception | dict[TP, int]] = [SilentLog("no leader"), SilentLog("no leader"), {ORDERS: 3}]
    passed: list[int] = []

    async def existing_ends(_: Iterable[TP]) -> dict[TP, int]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> None:
        machine: Any = SimpleNamespace(waits_for_arrivals=lambda _: not passed, arrivals_are_in=passed.append)
        inbox: Any = SimpleNamespace(sources=[ORDERS], will_bring=lambda *_: asyncio.sleep(0, False))
        log: Any = SimpleNamespace(existing_ends=existing_ends)
        gate = ArrivalGate(machine, inbox, log, lambda: None)
        for _ in range(2):
            assert not await gate.let_pass(1_000)
            assert not gate.must_ask(1_000), "the question is under way"
            await asyncio.sleep(0)
            assert not await gate.let_pass(1_000)
            assert gate.must_ask(1_000), "another step follows at once"
        assert not await gate.let_pass(1_000)
        await asyncio.sleep(0)
        assert await gate.let_pass(1_000)
        assert passed == [1_000]

    finished(run())
