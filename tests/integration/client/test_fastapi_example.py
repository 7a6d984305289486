"""The example with FastAPI: requests submit tasks, and the application's lifespan consumes them (X3)."""

import importlib
from pathlib import Path

import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.feature("X3", "Q5", "Q24")
def test_an_application_submits_and_consumes(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient  # here: all processes collect this file

    here = deploy({"orders": {"expiration": "enabled", "max_deliveries": 3, "dead_letter": "dlq.orders{}"}}).apply()
    here.worker().wait_for_shards(1)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", here.servers)
    monkeypatch.setenv("ORDERS_QUEUE", here.name("orders"))
    monkeypatch.syspath_prepend(EXAMPLES)
    with TestClient(importlib.import_module("fastapi_app").app) as client:
        taken = client.post("/orders", json={"id": 1, "customer": "Ann"})
        assert (taken.status_code, taken.json()) == (202, {"bookmark": f"{here.name('orders')}:0:0"})
        assert client.post("/orders", json={"id": 2, "customer": "Bob"}).status_code == 202
        assert client.post("/orders", json={"id": "x"}).status_code == 422
        here.write("orders", '{"task": "pack", "arguments": {"order": {"id": 3}}}')
        until(lambda: client.get("/orders").json() == [1, 2], "both are packed")
        (letter,) = here.letters("orders", 1)
        assert b"order.customer: Field required" in dict(letter.headers())["__dlq.errors.message"]
    until(lambda: here.depth("orders")["subscriptions"] == 0, "it has left")
    assert here.depth("orders")["depth"] == 0
