"""The units of `deploy/systemd`: systemd understands them, they are locked up, and their commands are accepted."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.programs.program import program, run
from support.suite import command

UNITS = Path(__file__).parents[3] / "deploy/systemd"
SERVICES = sorted(UNITS.glob("*.service"))
LAPSE = "/opt/lapse/bin/lapse"
MOST_EXPOSED = 20
"""Tenths; systemd calls a service of more than 50 exposed, and one without any of these settings has 96."""


def installed(directory: Path) -> list[Path]:
    """The units in a directory of their own, one of each template, with another program in the place of lapse."""
    units = []
    for path in [*SERVICES, *UNITS.glob("*.timer")]:
        units.append(directory / path.name.replace("@", "@1"))
        units[-1].write_text(path.read_text("utf-8").replace(LAPSE, "/bin/true"), "utf-8")
    return units


def analyze(*arguments: str | Path, directory: Path) -> tuple[int, str]:
    environment = {"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin", "SYSTEMD_PAGER": "cat"}
    done = subprocess.run(
        [program("systemd-analyze"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def unit(path: Path) -> configparser.ConfigParser:
    """A unit; of a setting that it has several times, the last one."""
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    found.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser's documentation has it
    found.read_string(path.read_text("utf-8"))
    return found


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    units = installed(tmp_path)
    assert len(units) == 6
    code, printed = analyze("verify", "--man=no", "--recursive-errors=yes", *units, directory=tmp_path)
    assert (code, printed) == (0, "")
    units[0].write_text(units[0].read_text().replace("TimeoutStopSec", "TimeoutStpSec"), "utf-8")
    _, printed = analyze("verify", "--man=no", units[0], directory=tmp_path)
    assert "TimeoutStpSec" in printed, "a fault would be found"


def test_every_service_is_locked_up(tmp_path: Path) -> None:
    for path in installed(tmp_path):
        if path.suffix == ".service":
            options = ["--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager"]
            code, printed = analyze("security", *options, path, directory=tmp_path)
            assert code == 0, printed[-300:]


@pytest.mark.parametrize("path", SERVICES, ids=[path.stem for path in SERVICES])
def test_its_command_is_accepted_and_writes_where_it_may(path: Path) -> None:
    service = unit(path)["Service"]
    words = shlex.split(service["ExecStart"].replace("$LAPSE_GATEWAY_OPTIONS", "--host 0.0.0.0 --rate 50"))
    assert words.pop(0) == LAPSE
    done = command.run(*words, "--help", environment={})
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("${STATE_DIRECTORY}" in service["ExecStart"]) is ("StateDirectory" in service)
    assert service["User"] == service["Group"] == "lapse"


def test_a_worker_is_always_started_again_and_has_a_directory_of_its_own() -> None:
    found = unit(UNITS / "lapse-worker@.service")
    assert found["Service"]["Restart"] == "always"
    assert found["Unit"]["StartLimitIntervalSec"] == "0"
    assert found["Service"]["StateDirectory"].endswith("%i")
    assert "--no-supervise" in found["Service"]["ExecStart"]


def test_every_timer_has_its_service_and_the_user_is_made() -> None:
    timers = {path.stem for path in UNITS.glob("*.timer")}
    assert timers == {"lapse-ledger", "lapse-monitor"}
    assert all((UNITS / f"{name}.service").exists() for name in timers)
    assert re.search(r"^u lapse ", (UNITS / "lapse.sysusers.conf").read_text("utf-8"), re.MULTILINE)


def test_the_commands_of_the_page_install_the_units(tmp_path: Path) -> None:
    """As they stand, in a root directory of their own; a Python is not installed there, and nothing starts."""
    page = (UNITS.parents[1] / "docs/deployment.md").read_text("utf-8").split("\n## systemd\n")[1]
    ran = []
    for line in re.findall(r"^ {4}(.+)$", page.split("\n|")[0], re.MULTILINE):
        ran.append(line.split()[0])
        if ran[-1] == "cp":
            *sources, target = line.split()[1:]
            into = tmp_path / target.lstrip("/")
            (into if target.endswith("/") else into.parent).mkdir(parents=True, exist_ok=True)
            for path in (found for source in sources for found in sorted(UNITS.parents[1].glob(source))):
                shutil.copy(path, into)
        elif ran[-1] == "systemd-sysusers":
            run(program("systemd-sysusers"), f"--root={tmp_path}")
            assert "lapse:" in (tmp_path / "etc/passwd").read_text()
        elif ran[-1] == "systemctl":
            run(program("systemctl"), f"--root={tmp_path}", *(word for word in line.split()[1:] if word != "--now"))
    assert ran == [
        *("python3", "/opt/lapse/bin/pip", "mkdir", "cp", "install", "cp", "cp", "systemd-sysusers"),
        *("/opt/lapse/bin/lapse", "systemctl"),
    ]
    assert (tmp_path / "etc/lapse/lapse.toml").is_file()
    wanted = {path.name for path in (tmp_path / "etc/systemd/system").glob("*.wants/*")}
    assert wanted == {"lapse-worker@1.service", "lapse-gateway.service", "lapse-ledger.timer"}
