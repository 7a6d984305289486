"""What a worker's log says of a start (X7)."""

import orjson
import pytest

from support.deployment import Deploy


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
