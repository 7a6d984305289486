"""The coordinator of the group's members, without a broker."""

import asyncio
import gc
from typing import Any

import pytest

pytest.importorskip("faust")

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaConnectionError

from lapse.runtime.kafka.group.steady_coordinator import SteadyCoordinator


@pytest.mark.feature("C52")
@pytest.mark.parametrize("given_up", [True, False])
def test_a_commit_that_fails_after_it_was_given_up_is_no_unread_error(
    monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """Who still waits for it gets its error."""
    unread = list[dict[str, Any]]()

    async def fail(*_: Any) -> None:
        await asyncio.sleep(0.01)
        raise KafkaConnectionError("the broker is silent")

    async def known(_: Any) -> None:
        return

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unread.append(about))
        coordinator = object.__new__(SteadyCoordinator)
        coordinator._commit_lock = asyncio.Lock()
        coordinator._closing = asyncio.get_running_loop().create_future()
        coordinator._retry_backoff_ms = 10
        with pytest.raises(TimeoutError if given_up else KafkaConnectionError):
            async with asyncio.timeout(0 if given_up else 20):
                await coordinator.commit_offsets(None, {"a": 1})
        await asyncio.sleep(0.05)
        gc.collect()

    monkeypatch.setattr(KafkaConnectionError, "retriable", False)
    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", fail)
    monkeypatch.setattr(GroupCoordinator, "ensure_coordinator_known", known)
    asyncio.run(live())
    assert unread == []
