"""Start-up: many shards are restored side by side, and a crash is not waited for by the worker that had it."""

import re
import time
from datetime import datetime

import pytest

from support.deployment import Deploy, WorkerProcess
from support.log import until


def seconds_to_restore(worker: WorkerProcess) -> float:
    """From the last assignment to the last shard."""
    instants = [
        datetime.strptime(found.group(1), "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007  # differences only
        for line in worker.text.splitlines()
        if ("Executing _on_partitions_assigned" in line or "; epoch " in line)
        and (found := re.match(r"\[(.{23})\]", line))
    ]
    return (instants[-1] - instants[0]).total_seconds()


@pytest.mark.feature("Q16", "C5")
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_forty_queues_are_restored_side_by_side_and_a_crash_is_not_waited_for(deploy: Deploy, store: str) -> None:
    """One after the other, 40 empty queues took more than ten seconds; the session of the dead lasts a minute."""
    names = [f"many{number}" for number in range(40)]
    here = deploy({name: {"partitions": 1} for name in names}, store=store, session_timeout="60s").apply()
    worker = here.worker().wait_for_shards(40)
    here.write("many7", "kept")
    until(lambda: here.depth("many7")["depth"] == 1, "the message")
    worker.kill()
    began = time.monotonic()
    worker.start().wait_for_shards(40, 40)
    assert here.depth("many7")["depth"] == 1
    assert time.monotonic() - began < 40
    assert seconds_to_restore(worker) < 8
    assert "left the group for the worker that died here" in worker.text
    assert worker.stop() == 0
    worker.start().wait_for_shards(40)
    assert "left the group for" not in worker.text


@pytest.mark.feature("Q16")
def test_a_worker_that_lives_is_not_taken_out_by_another_with_its_data_directory(deploy: Deploy) -> None:
    """State in memory: two workers may share a directory, and each notes which member it is."""
    here = deploy({"orders": {"partitions": 2}}, session_timeout="30s").apply()
    command = ["-m", "lapse", "worker", "--config", str(here.config), "--no-supervise"]
    first = here.run([*command, "--data-dir", str(here.directory / "shared")]).wait_for_shards(2)
    second = here.run([*command, "--data-dir", str(here.directory / "shared")]).wait_for_shards(1)
    assert first.running
    assert "left the group for" not in second.text
    second.kill()
    second.start().wait_for_shards(1, 30)
    assert second.text.count("left the group for the worker that died here") == 1
    assert first.running
