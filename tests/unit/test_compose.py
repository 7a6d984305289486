"""docker-compose.yml is a valid compose file that fits the rest of the project, as far as that shows without Docker."""

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.embedded.jars import KAFKA
from lapse_gateway.scrape import Source

ROOT = Path(__file__).parents[2]

# The parts of the compose specification that this project uses.
SERVICE_KEYS = set("build command depends_on entrypoint environment healthcheck image ports restart volumes".split())
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
RESTARTS = re.compile(r"no|always|unless-stopped|on-failure(:\d+)?")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_services_have_known_keys_of_the_right_shape(compose: dict[str, Any]) -> None:
    assert set(compose) == {"name", "services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service or "build" in service, name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name
        assert all(isinstance(word, str) for key in ("command", "entrypoint") for word in service.get(key, [])), name
        assert all(re.fullmatch(r"[\d.]+:\d+:\d+", port) for port in service.get("ports", [])), name
        assert RESTARTS.fullmatch(service.get("restart", "no")), name
        if "healthcheck" in service:
            assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_everything_referred_to_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            assert how["condition"] in CONDITIONS
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            there = (ROOT / source).exists() if source.startswith("./") else source in compose["volumes"]
            assert there, f"{name}: {volume}"
        if "build" in service:
            assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_kafka_is_the_pinned_version(compose: dict[str, Any]) -> None:
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA.removeprefix('kafka-')}"


def test_listeners_fit_together(compose: dict[str, Any]) -> None:
    kafka = compose["services"]["kafka"]["environment"]
    protocols = dict(pair.split(":") for pair in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    listeners = dict(each.split("://") for each in kafka["KAFKA_LISTENERS"].split(","))
    advertised = dict(each.split("://") for each in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    assert set(protocols) == set(listeners) == {*advertised, kafka["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    for name, address in advertised.items():
        assert address.rpartition(":")[2] == listeners[name].rpartition(":")[2]
    for name in ("apply", "worker", "gateway", "monitor"):
        environment = compose["services"][name]["environment"]
        assert environment["KAFKA_BOOTSTRAP_SERVERS"] == advertised["PLAINTEXT"]


def test_figures_of_the_worker_are_read_where_it_serves_them(compose: dict[str, Any]) -> None:
    config = tomllib.loads((ROOT / "docker/lapse.toml").read_text("utf-8"))
    port = config["lapse"].pop("metrics_port")
    assert config.pop("lapse") == {"metrics_host": "0.0.0.0"}  # in a container
    assert config == tomllib.loads((ROOT / "lapse.toml").read_text("utf-8")), "the example, and nothing else"
    command = compose["services"]["gateway"]["command"]
    figures = Source.parse(command[command.index("--figures") + 1])
    assert (figures.host, figures.port) == ("worker", port)
    scraped = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text("utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == [f"worker:{port}"]
    mounted = {volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in ("prometheus.yml", *scraped["rule_files"])} == mounted


class _Answer(BaseHTTPRequestHandler):
    """Answers as a worker or a gateway that is ready, or not."""

    ready = True

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" and self.ready else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["worker", "gateway"])
def test_a_service_is_healthy_once_it_is_ready(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    how, *command = service["healthcheck"]["test"]
    assert (how, command[:2]) == ("CMD", ["python", "-c"])
    port = tomllib.loads((ROOT / "docker/lapse.toml").read_text("utf-8"))["lapse"]["metrics_port"]
    if name == "gateway":
        port = int(service["command"][service["command"].index("--port") + 1])
    assert f"'127.0.0.1', {port}," in command[2]

    def exit_code(at: int) -> int:
        program = command[2].replace(f"'127.0.0.1', {port},", f"'127.0.0.1', {at},")
        return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode

    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        codes = [exit_code(server.server_port)]
        _Answer.ready = False
        codes.append(exit_code(server.server_port))
        _Answer.ready = True
        server.shutdown()
    assert codes == [0, 1]
    assert exit_code(1) != 0, "nobody listens"


def test_alerts_do_not_wait_for_the_worker_that_they_tell_of(compose: dict[str, Any]) -> None:
    assert compose["services"]["prometheus"]["depends_on"]["worker"]["condition"] == "service_started"


def test_image_is_built_from_files_that_exist_and_are_sent() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in sent, f"{source} is kept back by .dockerignore"
