"""Dashboard and alerts on a real Prometheus that scrapes a worker and a gateway, and what the worker says of itself."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.figures import free_port, with_figures
from support.processes.gateway import Door, door
from support.programs.program import program

ROOT = Path(__file__).parents[3]
QUEUES = {"jobs": {"expiration": "enabled", "lease_period": "1s"}}


def got(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def measured(deploy: Deploy, port: int) -> Deployment:
    return with_figures(deploy, QUEUES, port)


@pytest.fixture(scope="module")
def gateway(measured: Deployment) -> Iterator[Door]:
    with door(measured) as opened:
        yield opened


@pytest.fixture(scope="module")
def prometheus(gateway: Door, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Scrapes worker and gateway every second, with the rules and the configuration of `deploy/`."""
    executable, directory, own = program("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    rules = ROOT / "deploy/prometheus/lapse-alerts.yml"
    text = text.replace("127.0.0.1:9464", f"127.0.0.1:{port}").replace("15s", "1s")
    text = text.replace("127.0.0.1:8080", gateway.address.removeprefix("http://"))
    (directory / "prometheus.yml").write_text(text.replace("lapse-alerts.yml", str(rules)))
    command = [executable, f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    running = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{own}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: answers(own), "Prometheus is ready")
    yield own
    running.terminate()
    running.wait(20)


def answers(port: int) -> bool:
    """Whether Prometheus has started."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
            return True
    except OSError:
        return False


def asked(port: int, expression: str) -> list[dict[str, Any]]:
    """The samples that an expression has now; an expression that cannot be read fails."""
    status, answer = got(port, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    assert status == 200, f"{expression}: {answer}"
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


@pytest.mark.feature("Q15", "D1")
def test_every_panel_of_the_dashboard_shows_something(measured: Deployment, gateway: Door, prometheus: int) -> None:
    assert gateway.depth("jobs")["depth"] == 0
    until(lambda: asked(prometheus, "lapse_removals_total"), "the first figures: a rate begins with them")
    until(lambda: asked(prometheus, "lapse_gateway_requests_total"), "those of the gateway")
    measured.write("jobs", *"abcdef")
    measured.write("jobs", "dies", headers=[("lapse-ttl-ms", b"300")])
    measured.write("prices", "1", key=b"A")
    subscriber = measured.subscriber("jobs", 6).start()
    first, second = subscriber.receive(10), subscriber.receive(10)
    assert first is not None
    assert second is not None
    subscriber.settle("acknowledge", [first], wait=True)
    subscriber.settle("cancel", [second], wait=True)
    with measured.queue("jobs") as queue:
        queue.pause()
    panels = json.loads((ROOT / "deploy/grafana/lapse.json").read_text())["panels"]
    values = {"$entity": ".+", "$__rate_interval": "1h"}
    empty = {panel["title"] for panel in panels}

    def shown() -> bool:
        for panel in panels:
            for target in panel["targets"] if panel["title"] in empty else ():
                expression = re.sub(r"\$\w+", lambda one: values[one[0]], target["expr"])
                if asked(prometheus, expression):
                    empty.discard(panel["title"])
        return not empty

    try:
        until(shown, "something in every panel", 30)
    except AssertionError as error:
        raise AssertionError(f"nothing is shown by {sorted(empty)}") from error
    subscriber.close()
    with measured.queue("jobs") as queue:
        queue.resume()


@pytest.mark.feature("Q15")
def test_prometheus_takes_the_alerts(measured: Deployment, prometheus: int) -> None:
    until(lambda: asked(prometheus, "lapse_worker_shards"), "the first figures")
    _, answer = got(prometheus, "/api/v1/rules")
    rules = answer["data"]["groups"][0]["rules"]
    until(lambda: not asked(prometheus, 'ALERTS{alertstate="firing", severity="critical"}'), "no critical alert")
    assert len(rules) == (ROOT / "deploy/prometheus/lapse-alerts.yml").read_text().count("- alert:")
    assert {rule["health"] for rule in got(prometheus, "/api/v1/rules")[1]["data"]["groups"][0]["rules"]} <= {
        "ok",
        "unknown",
    }


@pytest.mark.feature("Q15")
def test_keda_gets_one_number_by_the_queries_of_recipe_and_chart(measured: Deployment, prometheus: int) -> None:
    texts = [(ROOT / name).read_text() for name in ("docs/recipes/kubernetes-keda.md", "deploy/helm/lapse/values.yaml")]
    queries = {query for text in texts for query in re.findall(r"^ +query: (.+?)(?: +#.*)?$", text, re.MULTILINE)}
    assert len(queries) == 2
    for query in queries:
        expression = query.replace('"orders"', f'"{measured.name("jobs")}"')
        until(lambda asks=expression: asked(prometheus, asks), "the figures")
        (sample,) = asked(prometheus, expression)
        assert float(sample["value"][1]) >= 0


@pytest.mark.feature("C5", "C52")
def test_a_worker_says_whether_it_lives_and_serves(measured: Deployment, port: int) -> None:
    assert got(port, "/health") == (200, {"healthy": True})
    status, facts = got(port, "/ready")
    assert status == 200, facts
    assert (facts["assigned"], facts["served"], facts["awaited"], facts["barred"]) == (2, 2, [], {})
