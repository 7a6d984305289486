"""A process of the demo, as its director sees it: started, killed, started again, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson

from lapse.demo.error import DemoFailed
from lapse.parent_death import end_with_parent

_TAIL: Final = 12


class Member:
    """One process, through all its starts.

    Args:
        name: the name, also of its log.
        command: arguments for this Python; `{life}` stands for the number of earlier starts.
        log: file for its log: its standard error, and lines of its standard output that are not JSON.
        environment: environment of the process.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.lives = 0
        self.reported: dict[str, Any] = {}
        """The latest value of everything that the process has written to standard output, as lines of JSON."""
        self._command = command
        self._log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it runs and has said that it is ready."""
        return self.alive and bool(self.reported.get("ready"))

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it. Call this in a thread that lives as long as the demo, since Linux ends it with that thread."""
        arguments = [part.format(life=self.lives) for part in self._command]
        self.reported = {}
        self.lives += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                preexec_fn=end_with_parent,  # noqa: PLW1509  # a single system call
            )
        assert self._process.stdout is not None
        listening = (self._process.stdout, self.reported, self._log)
        threading.Thread(target=_listen, args=listening, daemon=True).start()

    def send_line(self, **what: Any) -> None:
        """Write a line of JSON to its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(what) + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it with SIGKILL, without a chance to clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop it with SIGTERM, or with SIGKILL if it does not end within `timeout_s` seconds."""
        self.ask_to_stop()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, without waiting."""
        if self.alive and self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def failure(self, what: str) -> DemoFailed:
        """Return the error for what went wrong, with the end of its log."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines() if self._log.is_file() else []
        tail = "\n".join(f"  {line}" for line in lines[-_TAIL:])
        return DemoFailed(f"The {self.name} {what}. Its log, {self._log}, ends with:\n{tail or '  (nothing)'}")


def _listen(pipe: IO[bytes], reported: dict[str, Any], path: Path) -> None:
    """Take what a process says. Other lines belong to its log: a worker logs to its standard output."""
    for line in pipe:
        try:
            reported.update(orjson.loads(line))
        except (orjson.JSONDecodeError, TypeError, ValueError):
            with path.open("ab") as log:
                log.write(line)
