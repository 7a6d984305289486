"""A worker that starts while no broker answers waits for one, and says so to whoever asks."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from lapse.embedded import EmbeddedKafka
from lapse_client import Publisher
from support.kafka.log import until
from support.processes.deployment import Deploy
from support.processes.figures import free_port, scraped


def asked(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """The status and what is told; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


@pytest.mark.feature("X7", "C5")
@pytest.mark.timeout(280)
def test_what_starts_before_the_brokers_waits_and_then_serves(deploy: Deploy, own_kafka: EmbeddedKafka) -> None:
    """With entities from the file and from the topic; the signal to end counts while it waits. A gateway waits, too."""
    ports = {"file": free_port(), "topic": free_port()}
    here = {
        how: deploy({"orders": {}}, servers=own_kafka.bootstrap_servers, definitions=how, metrics_port=port).apply()
        for how, port in ports.items()
    }
    own_kafka.stop()
    workers = {how: one.worker() for how, one in here.items()}
    door = free_port()
    options = ["--wait", "--port", str(door), "--config", str(here["file"].config)]
    gateway = here["file"].run(["-m", "lapse", "gateway", *options])
    for how, port in ports.items():
        until(lambda port=port: asked(port, "/health")[0] == 200, "the worker answers", 40)
        assert asked(port, "/health") == (200, {"healthy": True})
        until(lambda port=port: asked(port, "/ready")[1].get("brokers_away_s"), "it says that they are away", 40)
        status, facts = asked(port, "/ready")
        assert (status, facts["ready"], facts["joined"]) == (503, False, False)
        assert f"no answer from Kafka at {own_kafka.bootstrap_servers}: " in facts["why"]
        assert scraped(port)[("lapse_worker_broker_away_seconds",)] > 0
        assert "The worker waits for it" in workers[how].text
    for one in here.values():
        ended = one.worker()
        until(lambda ended=ended: "The worker waits for it" in ended.text, "another one, whose port is taken", 40)
        assert ended.stop(10) == 0

    until(lambda: asked(door, "/health")[0] == 200, "the gateway answers", 40)
    assert asked(door, "/ready")[0] == 503
    assert gateway.text.count("The gateway waits for it") == 1

    own_kafka.start()
    for how, one in here.items():
        workers[how].wait_for_shards(1, 90)
        until(lambda how=how: asked(ports[how], "/ready")[0] == 200, "it is ready", 40)
        assert workers[how].text.count("The worker waits for it") == 1
        with Publisher(connection=one.connection) as publisher:
            publisher.publish(one.name("orders"), b"1")
        until(lambda one=one: one.depth("orders")["depth"] == 1, "the message")
    until(lambda: asked(door, "/ready")[0] == 200, "the gateway is ready", 40)
    queue = f"/v1/queues/{here['file'].name('orders')}"
    until(lambda: asked(door, queue)[1].get("depth") == 1, "the message, through the gateway", 40)
    for process in (*workers.values(), gateway):
        assert process.stop() == 0


@pytest.mark.feature("X5", "X7")
def test_what_a_broker_refuses_does_not_wait(deploy: Deploy) -> None:
    here = deploy({"orders": {}})
    security = '\n[security]\nprotocol = "SASL_PLAINTEXT"\nusername = "u"\npassword = "p"\n'
    here.config.write_text(here.config.read_text("utf-8") + security, "utf-8")
    for command in (["worker"], ["gateway", "--wait", "--port", "0"]):
        done = here.lapse(*command)
        assert done.returncode == 1
        assert "SASL PLAIN mechanism handshake failed" in done.stderr
        assert "waits" not in done.stdout + done.stderr
