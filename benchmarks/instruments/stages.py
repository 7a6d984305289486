"""Reads the mean time of each stage within a worker from its figures for Prometheus."""

from __future__ import annotations

import socket
import urllib.request
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.comparison.contestant import Figures
from lapse.runtime.shard.timeline import Stage

_FAMILY: Final = "lapse_stage_seconds"


class Stages:
    """Reads the times of stages from a worker's endpoint.

    Attributes:
        options: the lines of the worker's `[lapse]` that open the endpoint.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self.options = f"metrics_port = {self._port}"
        self._before: dict[str, tuple[float, float]] = {}

    def begin(self) -> None:
        """Start counting."""
        self._before = self._read()

    def figures(self) -> Figures:
        """Return the mean time of each stage since `begin`, ms. A batch or step is one value."""
        now = self._read()
        figures: Figures = {}
        for stage in Stage:
            total, count = now.get(stage, (0.0, 0.0))
            total_before, count_before = self._before.get(stage, (0.0, 0.0))
            if count > count_before:
                figures[f"{stage}_ms"] = (total - total_before) / (count - count_before) * 1e3
        return figures

    def _read(self) -> dict[str, tuple[float, float]]:
        """Return sum and count of each stage."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            if family.name == _FAMILY:
                for sample in family.samples:
                    part = sample.name.removeprefix(f"{_FAMILY}_")
                    if part in ("sum", "count"):
                        of_it = found.setdefault(sample.labels["stage"], {"sum": 0.0, "count": 0.0})
                        of_it[part] += sample.value
        return {stage: (one["sum"], one["count"]) for stage, one in found.items()}
