"""Runs a `lapse worker` process for a benchmark, with topics of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from lapse.runtime import arenas

PATIENCE_S = 120.0


def compiled_once() -> dict[str, str]:
    """Return an environment in which Python keeps compiled code, as it does after an installation.

    With `PYTHONDONTWRITEBYTECODE` set, each start of a worker takes 1.5 s more CPU.
    """
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        environment.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "lapse-benchmark-bytecode"))
    return environment


class Worker:
    """A deployment with one worker; a context manager that ends the process and deletes all files.

    Args:
        bootstrap_servers: the broker.
        app_id: the name of the deployment.
        entities: the `[queue.…]` and `[sow.…]` tables, as TOML.
        store: `memory` or `rocksdb`.
        options: further lines of `[lapse]`.
        turns: whether to note how long its event loop works without a pause, in `turns_file`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        app_id: str,
        entities: str,
        store: str = "memory",
        options: str = "",
        *,
        turns: bool = False,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="lapse-benchmark-")
        directory = Path(self._directory.name)
        self.log = directory / "worker.log"
        self.turns_file = directory / "turns"
        self._program = ["benchmarks.instruments.turns", str(self.turns_file)] if turns else ["lapse"]
        self._config = directory / "lapse.toml"
        self._head = (
            f'[lapse]\napp_id = "{app_id}"\nbootstrap_servers = "{bootstrap_servers}"\n'
            f'store = "{store}"\ndata_dir = "{directory}/data"\n{options}\n'
        )
        self._config.write_text(f"{self._head}{entities}\n")
        self._servers = {"KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers}  # else a run's own broker comes first
        self._process: subprocess.Popen[bytes] | None = None

    def apply(self, entities: str | None = None) -> None:
        """Create the topics, and write the definitions if a topic has them.

        Args:
            entities: the new tables of `lapse.toml`; None = keep them.

        Raises:
            RuntimeError: `lapse apply` failed; the text is its output.
        """
        if entities is not None:
            self._config.write_text(f"{self._head}{entities}\n")
        command = [sys.executable, "-m", "lapse", "apply", "--yes", "-c", str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=compiled_once() | self._servers)
        if done.returncode:
            raise RuntimeError(f"lapse apply: {done.stderr[-2000:]}")

    def start(self) -> None:
        """Start the process, without waiting until it serves."""
        command = [sys.executable, "-m", *self._program, "worker", "--no-supervise", "-c", str(self._config)]
        with self.log.open("ab") as log:
            environment = arenas.with_huge_pages(compiled_once() | self._servers)  # as a supervisor starts it
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the process with SIGTERM, or with SIGKILL after 20 s."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def process(self) -> psutil.Process:
        """The running process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return None if self._process is None else self._process.poll()

    def until(self, reached: Callable[[], object], timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> None:
        """Wait until a condition holds.

        Raises:
            RuntimeError: The worker ended, or it took too long.
        """
        deadline = time.monotonic() + timeout_s
        while not reached():
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError("the worker ended")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not reached within {timeout_s:.0f} s")
            time.sleep(every_s)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None and self.log.exists():
            sys.stderr.write(self.log.read_text(errors="replace")[-4000:])
        self._directory.cleanup()
