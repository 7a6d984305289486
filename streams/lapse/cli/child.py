"""A `lapse` command as a child process, which ends when its parent does."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from lapse.parent_death import end_with_parent


class Child:
    """A `lapse` command in a process of its own. Its output goes to the parent line by line.

    Ctrl-C in the terminal does not reach it, so that the parent can stop its children in the right order.

    Args:
        name: name to show in front of its lines.
        arguments: arguments of the command, without `lapse`.
        environment: environment variables in addition to those of this process.
        show: called with the name and each printed line, without its end, in a thread of its own.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], show: Callable[[str, str], None]
    ) -> None:
        self.name = name
        self._show = show
        self._first: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lapse", *arguments],
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  # one system call
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name=name, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def first_line(self, timeout_s: float) -> str | None:
        """Wait up to `timeout_s` seconds for its first line of output; return None if it ended or printed nothing."""
        try:
            return self._first.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wait(self) -> int:
        """Wait until it ends and all of its output was passed on; return its exit code."""
        code = self._process.wait()
        self._reader.join()
        return code

    def terminate(self) -> None:
        """Ask the process to end, unless it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process with SIGKILL, unless it has ended."""
        self._process.kill()

    def stop(self, timeout_s: float) -> None:
        """Terminate the process, and kill it if it has not ended within `timeout_s` seconds."""
        self.terminate()
        if not self.ended_within(timeout_s):
            self.kill()
        self.wait()

    def ended_within(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for its end, and return whether that has come."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for number, raw in enumerate(output):
                line = raw.decode(errors="replace").rstrip("\r\n")
                if not number:
                    self._first.put(line)  # nobody takes the others, and a worker may log for weeks
                self._show(self.name, line)
        self._first.put(None)
