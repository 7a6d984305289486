"""What `lapse doctor` finds on this machine, and what it says to do about it (Q15)."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import orjson
import pytest

from lapse.config import Config
from lapse.doctor import Finding, Verdict, check_machine
from lapse.embedded.errors import JavaMissing
from support.suite.command import run

Usage = namedtuple("Usage", "total used free")


def found(about: str, **lapse: object) -> list[Finding]:
    config = Config.model_validate({"lapse": {"data_dir": "data", **lapse}, "queue": {"orders": {}}})
    return [one for one in check_machine(config) if one.about == about]


@pytest.mark.feature("Q15")
def test_without_java_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.verdict for one in found("Java")] == [Verdict.FINE]

    def none() -> object:
        raise JavaMissing("Java 17 or newer is needed: pip install 'lapse[java]'")

    monkeypatch.setattr("lapse.doctor.machine.find_java", none)
    (java,) = found("Java")
    assert java.verdict is Verdict.WARNING, "who has a broker elsewhere needs none"
    assert "pip install 'lapse[java]'" in java.remedy


@pytest.mark.feature("Q15")
@pytest.mark.parametrize("text", [None, "[queue.orders"])
def test_without_a_configuration_that_can_be_read_this_machine_is_looked_at(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "lapse.toml").write_text(text, "utf-8")
    done = run("doctor", "--json", directory=tmp_path)
    printed = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [one["about"] for one in printed] == ["configuration", "versions", "Java"]
    assert (printed[0]["verdict"], done.returncode) == ("wrong", 1)


@pytest.mark.feature("Q15")
def test_a_package_of_another_version_than_the_pinned_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    (fine,) = found("versions")
    assert fine.verdict is Verdict.FINE
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1" if name == "faust-streaming" else real(name))
    _, faust = found("versions")
    assert (faust.verdict, faust.text) == (Verdict.WRONG, "faust-streaming is 0.0.1")
    assert faust.remedy.startswith("lapse needs ")
    assert "pip install 'faust-streaming==" in faust.remedy


@pytest.mark.feature("Q15")
def test_a_disk_that_is_nearly_full_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = str(tmp_path / "not" / "there" / "yet")
    for name in (place, str(tmp_path / ("long" * 1_000))):
        assert [one.verdict for one in found("disk", data_dir=name)] == [Verdict.FINE]
    monkeypatch.setattr("lapse.doctor.machine.shutil.disk_usage", lambda _: Usage(1 << 40, 1 << 40, 1 << 20))
    (disk,) = found("disk", data_dir=place)
    assert disk.verdict is Verdict.WARNING
    assert "data_dir" in disk.remedy


class Ready(BaseHTTPRequestHandler):
    """A worker's port, or another program's."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        (orjson.dumps({"ready": True, "why": ""}), Verdict.FINE, "and is ready"),
        (
            orjson.dumps({"ready": False, "why": "3 of 12 shards are not restored yet"}),
            Verdict.WARNING,
            "not ready: 3 of 12 shards",
        ),
        (b"<html>", Verdict.WARNING, "is another program's"),
        (b"[]", Verdict.WARNING, "is another program's"),
    ],
)
def test_who_has_the_port_of_the_figures_is_asked(
    port: int, monkeypatch: pytest.MonkeyPatch, answer: bytes, verdict: Verdict, message: str
) -> None:
    monkeypatch.setattr(Ready, "answer", answer)
    (one,) = found("ports", metrics_port=port)
    assert one.verdict is verdict
    assert message in one.text
    assert bool(one.remedy) is (verdict is Verdict.WARNING)


def test_a_port_that_is_free_is_not_mentioned() -> None:
    assert found("ports", metrics_port=1) == []
