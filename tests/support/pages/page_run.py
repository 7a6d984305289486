"""Follows a page of the documentation as a reader does: writes its files, runs its commands, compares their output.

A block that begins with `# name` is that file. A block of the kind `console` has commands after `$ `, each with its
output. In it, `…` stands for any text, and alone on a line for any lines. Widths of tables are not compared.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from lapse.parent_death import end_with_parent
from support.suite import class_archives

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STARTED = "lapse dev"
_LAST_LINE = "  lapse doctor\n"
_ENDED_S = 120
_end_with_parent = partial(end_with_parent, signal.SIGINT)
"""Interrupts this process, as Ctrl-C does, when its parent ends in any way."""


class PageRun:
    """Follows a page with a shell in an empty directory.

    Args:
        page: the page.
        place: the directory.
        servers: the broker that `lapse dev` uses; None = it starts one, and all have the ports that the page shows.
        environment: the environment of all processes; None = this one's.
        programs: the directory of `python` and `lapse`; None = that of this Python.

    Attributes:
        commands: the number of commands that were run.
        took_s: the time of each command, s.
    """

    def __init__(
        self,
        page: Path,
        place: Path,
        servers: str | None,
        environment: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        self._blocks = _BLOCK.findall(page.read_text("utf-8"))
        self._place = place
        given = class_archives.interpreted(os.environ) if environment is None else dict(environment)
        path = f"{programs or Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
        self._environment = {**given, "PATH": path, "COLUMNS": "200"}
        self._start = ["lapse", "dev"]
        if servers is not None:
            self._environment["KAFKA_BOOTSTRAP_SERVERS"] = servers
            self._start += ["--console-port", "0"]
        self._dev: subprocess.Popen[str] | None = None
        self._shell: subprocess.Popen[str] | None = None
        self.commands = 0
        self.took_s: dict[str, float] = {}

    def follow(self) -> None:
        """Write the files, and run the commands.

        Raises:
            AssertionError: A command prints something else than the page shows.
        """
        try:
            for kind, text in self._blocks:
                if kind == "console":
                    for command, shown in commands(text):
                        self.commands += 1
                        begun_s = time.monotonic()
                        printed = self._begin_dev() if command == _STARTED else self._run(command)
                        self.took_s[command] = time.monotonic() - begun_s
                        assert fits(shown, printed), f"$ {command}\n--- shown\n{shown}\n--- printed\n{printed}"
                elif named := re.match(r"# ([\w.-]+)\n", text):
                    (self._place / named[1]).write_text(text, "utf-8")
        finally:
            self._end()

    def _run(self, command: str) -> str:
        """Run a command in the page's shell, where background jobs continue. Return its output."""
        if self._shell is None:
            self._shell = subprocess.Popen(
                ["sh"], cwd=self._place, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=(self._place / "errors.txt").open("w"), text=True, start_new_session=True,
            )  # fmt: skip
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        end = f"--- end of command {self.commands}: "
        self._shell.stdin.write(f"{command}\ncode=$?; echo; echo '{end}'$code\n")
        self._shell.stdin.flush()
        lines = []
        for line in self._shell.stdout:
            if line.startswith(end):
                code = line.removeprefix(end).strip()
                errors = (self._place / "errors.txt").read_text()
                assert code == "0", f"$ {command}\nended with {code}: {errors}"
                return "".join(lines).rstrip("\n") + "\n"
            lines.append(line)
        raise AssertionError(f"$ {command}\nended the shell: {(self._place / 'errors.txt').read_text()}")

    def _begin_dev(self) -> str:
        """Start `lapse dev` with a console on a free port. Return what it prints, with the ports that pages show."""
        log = self._place / "dev.txt"
        with log.open("w") as out:
            self._dev = subprocess.Popen(
                self._start, cwd=self._place, env=self._environment, stdout=out,
                stderr=(self._place / "dev-errors.txt").open("w"), text=True, start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # one system call
            )  # fmt: skip
        give_up = time.monotonic() + _ENDED_S
        while not log.read_text().endswith(_LAST_LINE):
            assert self._dev.poll() is None, (self._place / "dev-errors.txt").read_text()
            assert time.monotonic() < give_up, "lapse dev has not started"
            time.sleep(0.1)
        printed = re.sub(r"(http://127\.0\.0\.1:)\d+", r"\g<1>8080", log.read_text())
        return re.sub(r"(Kafka +127\.0\.0\.1:)\d+", r"\g<1>9092", printed)

    def _end(self) -> None:
        """End all processes, `lapse dev` with SIGINT as by Ctrl-C."""
        if self._shell is not None:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        if self._dev is not None:
            self._dev.send_signal(signal.SIGINT)
            try:
                self._dev.wait(30)
            finally:
                if self._dev.poll() is None:
                    os.killpg(self._dev.pid, signal.SIGKILL)
                    self._dev.wait()


def commands(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with its output."""
    assert block.startswith("$ ")
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in block[2:].split("\n$ "))]


def fits(shown: str, printed: str) -> bool:
    """Return whether a command's output matches what the page shows."""
    pattern = "\n".join(
        ".*" if line == "…" else ".*?".join(map(re.escape, re.split(r" ?… ?|…", line))).replace(".*?", "[^\n]*?")
        for line in _without_widths(shown)
    )
    return re.fullmatch(pattern, "\n".join(_without_widths(printed)), re.DOTALL) is not None


def _without_widths(text: str) -> list[str]:
    """Return the lines without anything that depends on the width of a column."""
    lines = [re.sub(r" +", " ", re.sub(r"([━─])\1+", r"\1", line)).strip() for line in text.strip().splitlines()]
    return [line for line in lines if line]
