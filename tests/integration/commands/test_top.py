"""`lapse top`: queues at a glance."""

import json
import subprocess
from typing import Any

import pytest
from confluent_kafka import Consumer

from lapse.cli.top import _watched
from lapse_client import Admin, Queue, UnknownEntity
from lapse_client.kafka.transport import Transport
from lapse_client.queue.queues import Queues
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.suite import command

QUEUES = {"busy": {"partitions": 2}}

pytestmark = pytest.mark.feature("Q15")


def top(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run("top", *arguments, environment=deployment.environment())


def test_a_queue_at_a_glance(served: Deployment) -> None:
    served.write("busy", *"abc")
    served.write("busy", *"de", partition=1)
    with served.subscriber("busy", 2) as subscriber:
        until(lambda: served.depth("busy")["leased"] == 2, "two leases")
        done = top(served, served.name("busy"), "--json")
        assert done.returncode == 0, done.stderr
        (line,) = [json.loads(text) for text in done.stdout.splitlines()]
        assert subscriber.receive(10) is not None
    assert (line["queue"], line["depth"], line["available"], line["leased"]) == (served.name("busy"), 5, 3, 2)
    assert line["subscriptions"] == 1
    assert line["oldest_age_ms"] > 0


def test_a_queue_that_nobody_runs_and_one_that_is_not_there(deploy: Deploy) -> None:
    deployment = deploy({"idle": {}}).apply()
    done = top(deployment, deployment.name("idle"), "--json")
    assert done.returncode == 1
    assert "error" in json.loads(done.stdout)
    unknown = top(deployment, "nobody-at-all")
    assert unknown.returncode == 1
    assert "there is no queue 'nobody-at-all'" in unknown.stderr


def test_all_queues_are_asked_over_one_connection(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, Any]] = []
    consumer = Transport.consumer

    def counted(self: Transport, config: dict[str, Any]) -> Consumer:
        opened.append(config)
        return consumer(self, config)

    monkeypatch.setattr(Transport, "consumer", counted)
    stems = [f"calm-{number}" for number in range(8)]
    deployment = deploy({stem: {} for stem in stems}).apply()
    deployment.worker().wait_for_shards(8)
    deployment.write("calm-3", "x")
    until(lambda: deployment.depth("calm-3")["depth"] == 1, "the message")
    opened.clear()
    done = top(deployment, *map(deployment.name, stems), "--json")
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    assert {line["queue"]: line["depth"] for line in lines} == {
        deployment.name(stem): int(stem == "calm-3") for stem in stems
    }
    assert len(opened) == 1

    names = [deployment.name("calm-1"), deployment.name("calm-2"), "nobody-at-all"]
    with Queues(names, connection=deployment.connection) as queues:
        assert queues.depth(names[0]).result(30)["depth"] == 0
        with pytest.raises(UnknownEntity, match="there is no queue 'nobody-at-all'"):
            queues.depth(names[2]).result(30)
        with Queue(names[1], connection=deployment.connection) as queue:
            queue.delete()
        assert queues.depth(names[0]).result(30)["depth"] == 0, "the others answer when one is deleted"


@pytest.mark.feature("Q15", "Q23")
def test_a_queue_that_is_deleted_and_created_anew_is_shown_again(deploy: Deploy) -> None:
    here = deploy({"stays": {}, "goes": {}}, definitions="topic").apply()
    here.worker().wait_for_shards(2)
    stays, goes = here.name("stays"), here.name("goes")
    with (
        _watched((stays, goes), here.connection) as (queues, look),
        Admin(here.app_id, connection=here.connection) as admin,
    ):

        def shown() -> list[int | None]:
            look()
            return [queue.figures.get("depth") for queue in queues]

        until(lambda: shown() == [0, 0], "both")
        admin.delete_queue(goes)
        until(lambda: shown() == [0, None], "one is gone, and the other one answers")
        admin.create_queue(goes)
        until(lambda: shown() == [0, 0], "both again")


@pytest.mark.feature("Q15", "Q23")
def test_queues_that_come_and_go_are_followed(deploy: Deploy) -> None:
    here = deploy({"stays": {}}, definitions="topic").apply()
    here.worker().wait_for_shards(1)
    stays, comes = here.name("stays"), here.name("comes")
    admin = Admin(here.app_id, connection=here.connection)
    with _watched((stays,), here.connection, follows=True) as (queues, look), admin:

        def shown() -> dict[str, int | None]:
            look()
            return {one.name: one.figures.get("depth") for one in queues if here.token in one.name}

        until(lambda: shown() == {stays: 0}, "one")
        admin.create_queue(comes)
        until(lambda: shown() == {stays: 0, comes: 0}, "both")
        admin.delete_queue(comes)
        until(lambda: shown() == {stays: 0}, "one again")
