"""The containers of the Helm chart, run on this machine with exactly the command and `lapse.toml` that it renders."""

import json
import re
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.kafka.log import until
from support.processes.figures import free_port
from support.programs.chart import Container, manifests, rendered
from support.programs.program import run
from support.suite import command

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(1_000)  # Helm is built at the first run


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    """Those that a test has started, to be ended."""
    started: list[Container] = []
    yield started
    for one in started:
        one.kill()


def values_for(servers: str, token: str) -> dict[str, Any]:
    """Values of a release on this machine: its broker, and ports that nobody has."""
    return {
        "kafka": {"bootstrapServers": servers},
        "lapse": {"app_id": f"app-{token}", "replication_factor": 1, "session_timeout": "3s"},
        "config": f'[queue.jobs-{token}]\nlease_period = "30s"\n',
        "worker": {"metricsPort": free_port()},
        "gateway": {"port": free_port()},
    }


def said_inside(worker: Container) -> str:
    """What the command of the page prints, which somebody runs in a worker's pod to see why it is not ready."""
    text = (ROOT / "docs/deployment.md").read_text("utf-8")
    (line,) = re.findall(r"^    kubectl exec lapse-worker-0 -- python -c (.*)$", text, re.MULTILINE)
    (program,) = shlex.split(line)
    (port,) = (one["containerPort"] for one in worker.container["ports"])
    return run(sys.executable, "-c", program.replace("9464", str(port)))


@pytest.mark.integration
def test_a_release_serves_tells_so_and_ends_in_time(
    kafka: str, tmp_path: Path, containers: list[Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = uuid.uuid4().hex[:8]
    found = manifests(rendered(values_for(kafka, token)))
    config = found["ConfigMap", "lapse"]["data"]["lapse.toml"]
    pods = {
        kind: Container(
            found[kind, name]["spec"]["template"]["spec"], config, tmp_path / kind, {"lapse-workers": "127.0.0.1"}
        )
        for kind, name in (("Job", "lapse-apply"), ("StatefulSet", "lapse-worker"), ("Deployment", "lapse-gateway"))
    }
    apply, worker, gateway = pods.values()
    containers += [worker, gateway]
    done = command.run(*apply.command[3:], environment=apply.environment)
    assert done.returncode == 0, done.stdout + done.stderr

    for one in (worker, gateway):
        one.run()
    for one in (worker, gateway):
        one.await_probe("startupProbe")
        one.await_probe("readinessProbe")
        one.await_probe("livenessProbe")
    (port,) = (one["containerPort"] for one in gateway.container["ports"])
    queue = f"http://127.0.0.1:{port}/v1/queues/jobs-{token}"
    httpx.post(f"http://127.0.0.1:{port}/v1/publish/jobs-{token}", content=b"1").raise_for_status()
    until(lambda: httpx.get(queue).json().get("depth") == 1, "the message, through the gateway")
    figures = f"http://127.0.0.1:{port}/v1/figures/jobs-{token}"
    until(lambda: httpx.get(figures).status_code == 200, "figures of the worker, through the gateway")

    assert json.loads(said_inside(worker))["served"] == 1

    assert gateway.terminate() == 0
    assert worker.terminate() == 0
    assert worker.probe("livenessProbe") is None
    assert list((worker.directory("/var/lib/lapse")).iterdir())  # the volume: what was read need not be read again
