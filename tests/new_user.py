"""`make new-user`: the README's five minutes from a fresh clone, with an empty home and empty caches.

For each Python it prints what the steps took. Where one fails, or the first delivery comes after more than three
minutes, the exit code is 1. The ports that the README names have to be free.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.pages.page_run import PageRun

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
VERSIONS: Final = ("3.11", "3.12", "3.13")
GOAL_S: Final = 180.0
CONSUMER: Final = "python consumer.py"
IDLE_S: Final = 5.0
"""How long the README's consumer waits for a further message, s: its first delivery came before."""

_OURS: Final = ("KAFKA_", "LAPSE_", "PYTHON", "VIRTUAL_ENV", "XDG_")
"""Variables that a new user does not have."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """What the steps of one Python took, each in seconds.

    Attributes:
        install: the virtual environment, and what pip builds and installs into it.
        dev: until `lapse dev` says that everything runs, the downloads of its broker included.
        delivery: from there to the first delivery.
    """

    install: float
    dev: float
    delivery: float

    @property
    def total(self) -> float:
        """From nothing to the first delivery."""
        return self.install + self.dev + self.delivery


def pythons() -> list[str]:
    """The Pythons of this machine that lapse runs on, one of each version: on the path, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = []
    for version in VERSIONS:
        candidates = [f"python{version}", *(str(one / "bin/python") for one in sorted(pyenv.glob(f"{version}.*")))]
        found += [one for one in map(_executable, candidates) if one][:1]
    return found


def _executable(python: str) -> str:
    """Where a Python is that has what a virtual environment takes; empty for another one, or none."""
    asked = [python, "-c", "import ensurepip, sys, venv; print(sys.executable)"]
    try:
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def first_commands() -> list[str]:
    """The README's commands that install lapse: those in its indented block."""
    found = [
        line.removeprefix("    $ ") for line in README.read_text("utf-8").splitlines() if line.startswith("    $ ")
    ]
    assert any("pip install" in one for one in found), "the README does not say how to install lapse"
    return found


def environment(home: Path) -> dict[str, str]:
    """That of a user who has nothing yet, but for what says how this machine reaches the network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    for own in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (Path.home() / own).exists():
            kept.setdefault("PIP_CONFIG_FILE", str(Path.home() / own))
    return {**kept, "HOME": str(home)}


def follow(python: str, place: Path) -> Times:
    """Do what the README says.

    Raises:
        AssertionError: a command prints something else than the README shows.
        CalledProcessError: a command of the README that installs lapse has failed.
    """
    home, clone, first = place / "home", place / "lapse", place / "first"
    home.mkdir()
    first.mkdir()
    (first / "python3").symlink_to(_executable(python))
    its = environment(home)
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    begun_s = time.monotonic()
    said = subprocess.run(
        ["sh", "-ec", "\n".join([*first_commands(), "pwd"])], cwd=clone, stdout=subprocess.PIPE, text=True, check=True,
        env={**its, "PATH": f"{first}{os.pathsep}{its['PATH']}", "PIP_QUIET": "1"},
    )  # fmt: skip
    install_s = time.monotonic() - begun_s
    work = Path(said.stdout.splitlines()[-1])
    run = PageRun(README, work, None, its, clone / "venv/bin")
    run.follow()
    dev_s = run.took_s.pop("lapse dev")
    names = [*run.took_s]
    until_s = sum(run.took_s[name] for name in names[: names.index(CONSUMER) + 1]) - IDLE_S
    return Times(install=install_s, dev=dev_s, delivery=until_s)


def main(named: Sequence[str]) -> int:
    """Run for the Pythons that are named, or for those that are found; returns the exit code."""
    for ending in (signal.SIGTERM, signal.SIGHUP):  # so that `lapse dev` ends, and its directory goes
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    failed = False
    print(f"{'Python':8} {'install':>8} {'lapse dev':>10} {'delivery':>9} {'total':>7}   load", flush=True)
    for python in named or pythons():
        version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
        with tempfile.TemporaryDirectory(prefix="new-user-") as place:
            try:
                took = follow(python, Path(place))
            except (AssertionError, subprocess.SubprocessError) as error:
                failed = True
                print(f"{version:8} failed: {error}", flush=True)
                continue
        late = took.total > GOAL_S
        failed = failed or late
        print(
            f"{version:8} {took.install:6.1f} s {took.dev:8.1f} s {took.delivery:7.1f} s {took.total:5.1f} s   "
            f"{os.getloadavg()[0]:.1f}{'  later than the goal' if late else ''}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
