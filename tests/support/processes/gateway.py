"""A gateway as a process, and a client of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, WorkerProcess
from support.processes.described import Described


class Door:
    """A running gateway and a client of it, which compares every answer with the gateway's description."""

    def __init__(self, deployment: Deployment, process: WorkerProcess, address: str, **client: object) -> None:
        self.deployment = deployment
        self.process = process
        self.address = address
        hooks = {"response": [Described().check]}
        self.http = httpx.Client(base_url=f"{address}/v1", timeout=60, event_hooks=hooks, **client)

    def path(self, stem: str, rest: str = "") -> str:
        return f"/queues/{self.deployment.name(stem)}{rest}"

    def publish(self, stem: str, *values: object) -> list[str]:
        messages = [{"value": value} for value in values]
        answer = self.http.post(f"/publish/{self.deployment.name(stem)}/batch", json={"messages": messages})
        assert answer.status_code == 201, answer.text
        return [one["bookmark"] for one in answer.json()["results"]]

    def receive(self, stem: str, **parameters: object) -> list[dict]:
        answer = self.http.post(self.path(stem, "/receive"), params={"subscription": "w", "wait_s": 30, **parameters})
        assert answer.status_code == 200, answer.text
        return answer.json()["messages"]

    def depth(self, stem: str) -> dict:
        return self.http.get(self.path(stem)).json()


@contextmanager
def door(deployment: Deployment, *options: str, **client: object) -> Iterator[Door]:
    """Start a gateway on a free port. Stop it at the end, and check that it exits with 0 and no traceback."""
    config = ["--config", str(deployment.config)]
    process = deployment.run(["-m", "lapse", "gateway", "--port", "0", *config, *options])
    until(lambda: "lapse gateway: " in process.text or not process.running, "the gateway runs", 30)
    found = re.search(r"lapse gateway: (\S+)", process.text)
    assert found, process.text
    opened = Door(deployment, process, found[1], **client)
    try:
        yield opened
    finally:
        opened.http.close()
        assert process.stop() == 0, process.text
        deployment.workers.remove(process)
    assert "Traceback" not in process.text


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """Return the deployment of a test module's `QUEUES`, `SOW` and `LAPSE`, with one worker that its tests share."""
    queues, sow = request.module.QUEUES, request.module.SOW
    deployment = deploy({})
    deployment.configure(queues, sow, **getattr(request.module, "LAPSE", {}))
    shards = sum(entity.get("partitions", 1) for entity in (*queues.values(), *sow.values()))
    deployment.apply().worker().wait_for_shards(shards)
    return deployment


@pytest.fixture(scope="module")
def gateway(shop: Deployment) -> Iterator[Door]:
    """Start a gateway to `shop`."""
    with door(shop) as opened:
        yield opened
