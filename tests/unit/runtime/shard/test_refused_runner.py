"""A shard that Kafka refuses a write, or a read, is given up once its other step under way is over (C52, D3)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from aiokafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from lapse.runtime.journal import refused_shard
from lapse.runtime.shard.concurrent_writes import ConcurrentWrites
from lapse.runtime.shard.log import SilentLog
from lapse.runtime.shard.runner import Runner

pytestmark = pytest.mark.feature("C52", "D3")


class Refused(Runner):
    """A runner that learns of a refusal at its next step, or of a leader that does not answer."""

    def __init__(self, why: Exception) -> None:
        def refuse() -> None:
            raise why

        self.entity, self.partition, self._shown = "orders", 0, "orders, partition 0"
        self._more, self._writing = True, ConcurrentWrites()
        self._news, self._idle, self._may_run = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._may_run.set()
        self._turns: Any = SimpleNamespace(turn=lambda: asyncio.sleep(0))
        self._ticker: Any = SimpleNamespace(check=refuse)
        self._store: Any = None

    def _stop_tasks(self) -> None: ...


@pytest.mark.parametrize(
    "why", [TopicAuthorizationFailedError("events"), SilentLog("no leader answers")], ids=["refused", "silent"]
)
@pytest.mark.parametrize("fails", [False, True], ids=["is written", "is unknown"])
def test_the_step_under_way_ends_before_the_shard_is_given_up(
    fails: bool, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the next epoch it would write into its store, and its read positions would count for ever."""
    happened: list[str] = []
    monkeypatch.setattr(refused_shard, "begin", lambda *_: happened.append("given up"))
    monkeypatch.setattr(refused_shard, "end_process", lambda *_: happened.append("ended"))

    async def run() -> None:
        goes_on = asyncio.Event()

        async def write(_: object) -> None:
            await goes_on.wait()
            happened.append("written")
            if fails:
                raise KafkaTimeoutError("no answer")

        runner = Refused(why)
        await runner._writing.begin(write)
        running = asyncio.create_task(runner._run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert happened == []
        assert not runner._idle.is_set(), "a rebalance waits for it, too"
        goes_on.set()
        await running
        assert runner._idle.is_set()

    asyncio.run(run())
    assert happened == ["written", *(["ended"] if fails else []), "given up"]
