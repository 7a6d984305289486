"""`lapse top`: queues at a glance."""

import json
import subprocess

import pytest

from support import command
from support.deployment import Deploy, Deployment
from support.log import until

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
