"""Workers that are killed while messages flow, by what a queue does and how it is kept; the account has to balance."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from support.flow.load import FLOWING, Load, account
from support.processes.deployment import Deploy
from support.processes.figures import free_port, scraped
from support.suite.at_length import cases


class Mode(NamedTuple):
    """How a queue is kept and consumed while its worker is killed. Each is measured in the benchmarks."""

    queue: dict[str, Any] = FLOWING
    store: str = "memory"
    filters: Sequence[str] = ("",)
    ahead: int = 0


LIMITED = {"group_by": "/account", "group_limit": 3, "group_weight": {"a1": 4, "a2": 2}, "group_rate": "1000/1s"}
MODES = cases(
    [pytest.param(Mode(store="rocksdb"), id="rocksdb")],
    [
        pytest.param(Mode(), id="memory"),
        pytest.param(Mode({**FLOWING, "priority": "/price"}), id="priority"),
        pytest.param(Mode(filters=("/price < 5", "/price >= 5")), id="filter"),
        pytest.param(Mode({**FLOWING, "ordering": "total", "partitions": 3}), id="total-order"),
        pytest.param(Mode({**FLOWING, "group_by": "/account"}), id="groups"),
        pytest.param(Mode({**FLOWING, "rate": "5000/1s", **LIMITED}), id="shares"),
        pytest.param(Mode({**FLOWING, "state": "disk", "state_memory": 1}, ahead=200_000), id="state-on-disk"),
    ],
)


@pytest.mark.feature("Q16", "Q5", "D3", "L10", "L11", "C1", "C13")
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_killed_in_the_middle_of_load_loses_nothing_and_repeats_no_acknowledged_message(
    deploy: Deploy, mode: Mode
) -> None:
    """SIGKILL three times while publishers and subscribers go on.

    Every message has exactly one end; nothing is delivered after its acknowledgment was answered, or after its
    deadline; delivery counts only rise.
    """
    port = free_port()
    here = deploy({"flow": mode.queue}, store=mode.store, metrics_port=port, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    with Load(here, "flow", mode.queue.get("partitions", 1), filters=mode.filters, ahead=mode.ahead) as load:
        load.flow(100)
        assert bool(scraped(port).get(("lapse_queue_segments", "disk"))) == ("state" in mode.queue)
        for _ in range(3):
            load.flow(300)
            worker.kill()
            worker.start()
        load.flow(300)
        load.drain(300 if mode.ahead else 60)
    found = account(here, "flow", set(load.written))
    found.assert_balanced()
    assert len(load.written) > 1000


@pytest.mark.feature("Q6", "Q4", "Q16")
def test_at_most_once_never_delivers_twice_however_often_its_worker_is_killed(deploy: Deploy) -> None:
    """The removal is durable before the delivery is sent: a crash between the two loses, it does not repeat."""
    here = deploy({"once": {"semantics": "at-most-once"}}, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    with Load(here, "once", 1, forgetful=False) as load:
        for _ in range(3):
            load.flow(200)
            worker.kill()
            worker.start()
        load.flow(200)
        load.drain()
    assert {value: times for value, times in load.received.items() if times > 1} == {}
    found = account(here, "once", set(load.written))
    assert not found.lost
    assert not found.unexpected
    assert not {place for place, times in found.delivered.items() if times > 1}
