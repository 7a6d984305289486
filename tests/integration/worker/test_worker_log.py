"""What a worker's log says of a start (X7)."""

import time
from collections import Counter

import orjson
import pytest

from lapse.embedded import EmbeddedKafka
from support.kafka.log import until
from support.processes.deployment import Deploy


@pytest.mark.feature("X7")
def test_a_start_of_forty_queues_is_a_line_per_queue_and_few_more(deploy: Deploy) -> None:
    deployment = deploy({f"q{number}": {} for number in range(40)}).apply()
    worker = deployment.worker("--log-format", "json").wait_for_shards(40)
    assert worker.stop() == 0
    lines = [orjson.loads(line) for line in worker.text.splitlines()]
    assert len(lines) <= 60, "\n".join(line["message"] for line in lines)
    libraries = [line for line in lines if not line["logger"].startswith("lapse")]
    assert len(libraries) <= 3, "a new broker has no coordinator for a moment, which is all that they have to tell"
    assert all(line["level"] == "error" for line in libraries)


@pytest.mark.feature("X7")
def test_a_log_of_warnings_has_nothing_else(deploy: Deploy) -> None:
    deployment = deploy({"orders": {}}).apply()
    worker = deployment.worker("--log-format", "json", "--log-level", "warning")
    assert deployment.depth("orders")["depth"] == 0
    assert worker.stop() == 0
    assert all(line.startswith("{") for line in worker.text.splitlines()), worker.text


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_broker_that_is_away_is_a_few_lines_and_not_thousands(deploy: Deploy, own_kafka: EmbeddedKafka) -> None:
    deployment = deploy({"orders": {}}, servers=own_kafka.bootstrap_servers).apply()
    worker = deployment.worker("--log-format", "json").wait_for_shards(1)
    deployment.depth("orders")  # the take-over is at its end: within it a broker that goes ends the worker
    before = len(worker.text.splitlines())
    own_kafka.kill()
    time.sleep(25)

    def logged() -> list[dict[str, str]]:
        return [orjson.loads(line) for line in worker.text.splitlines()[before:] if line.startswith("{")]

    until(lambda: any(not line["logger"].startswith("lapse.") for line in logged()), "a library says so", 60)
    own_kafka.start()
    lines = logged()
    libraries = [line for line in lines if not line["logger"].startswith("lapse.")]
    texts = Counter((line["process"], line["logger"], line["message"][:40]) for line in libraries)
    assert len(lines) <= 60, "\n".join(line["message"] for line in lines)
    assert max(texts.values()) <= 4, texts.most_common(3)
