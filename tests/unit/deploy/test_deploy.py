"""What `deploy/` holds: alerts that are raised by what they are for, and figures that a worker really has."""

import json
import re
import shutil
from pathlib import Path

import pytest

from support.programs.program import program, run

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy/prometheus/lapse-alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/lapse.json"


def figures_in(text: str) -> set[str]:
    """Names of figures, as workers and gateways name them: without what Prometheus adds to counters and histograms."""
    return {re.sub(r"_(total|bucket)\Z", "", name) for name in re.findall(r"\blapse_[a-z_]+", text)}


def documented() -> set[str]:
    text = (ROOT / "docs/operations.md").read_text()
    table = text.split("### Figures for Prometheus")[1].split("\n## ")[0]
    table += (ROOT / "docs/gateway.md").read_text().split("\n## Figures")[1].split("\n## ")[0]
    return {name.removesuffix("_total") for name in re.findall(r"`(lapse_[a-z_]+)`", table)}


@pytest.mark.parametrize("file", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_only_figures_that_there_are_are_asked_for(file: Path) -> None:
    assert figures_in(file.read_text()) <= documented()


@pytest.mark.slow
def test_every_alert_is_raised_by_what_it_is_for_and_by_nothing_else(tmp_path: Path) -> None:
    promtool = program("promtool")
    shutil.copy(ALERTS, tmp_path)
    cases = shutil.copy(Path(__file__).with_name("lapse-alerts.test.yml"), tmp_path)
    assert "SUCCESS" in run(promtool, "test", "rules", cases)
    tried = set(re.findall(r'alertname="(\w+)"', Path(cases).read_text()))
    assert tried == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["deploy/prometheus/prometheus.yml", "docker/prometheus.yml"])
def test_the_configuration_of_prometheus_is_one(file: str, tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    checked = run(program("promtool"), "check", "config", shutil.copy(ROOT / file, tmp_path))
    assert "SUCCESS: 1 rule files found" in checked
    assert f"{ALERTS.read_text().count('- alert:')} rules found" in checked


def test_the_panels_of_the_dashboard_are_distinguished() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["targets"] for panel in panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
