"""Reads a worker's figures as Prometheus does."""

import socket
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from support.processes.deployment import Deploy, Deployment, Settings


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_figures(deploy: Deploy, queues: Mapping[str, Settings], port: int) -> Deployment:
    """Start a worker for queues and the SOW topic `prices` that serves its figures on a port."""
    deployment = deploy(queues)
    deployment.configure(queues, {"prices": {}}, metrics_port=port)
    deployment.apply().worker().wait_for_shards(len(queues) + 1)
    return deployment


def scraped(port: int, entity: str = "") -> Mapping[tuple[str, ...], float]:
    """Sum figures over the shards of an entity, or of all, by sample name and the values of other labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    sums: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if entity and sample.labels.get("entity") != entity:
                continue
            rest = (value for name, value in sorted(sample.labels.items()) if name not in ("entity", "shard"))
            name = (sample.name, *rest)
            sums[name] = sums.get(name, 0) + sample.value
    return sums
