"""Runs a `lapse worker` process for a test, with topics of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from support.processes import fork_server
from support.processes.deployment import apply

PATIENCE_S = 60.0


class Worker:
    """A `lapse worker` process with a configuration; a context manager that ends the process.

    Args:
        directory: the directory of the configuration, the state and the log.
        servers: the brokers.
        app_id: the worker's application id, which is its consumer group.
        entities: the `[queue.…]` and `[sow.…]` tables, as TOML.
        store: `memory` or `rocksdb`.
        environment: further environment variables.
    """

    def __init__(
        self, directory: Path, servers: str, app_id: str, entities: str, store: str = "memory", **environment: str
    ) -> None:
        self.directory = directory
        self.config = directory / "lapse.toml"
        self.log = directory / "worker.log"
        self._environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers, **environment}
        self._head = f'[lapse]\napp_id = "{app_id}"\nbootstrap_servers = "{servers}"\nsession_timeout = "6s"\n'
        self._head += f'store = "{store}"\n'
        self.process: fork_server.Process | None = None
        self.entity = ""
        """Name of the first entity."""
        self.configure(entities)

    def configure(self, entities: str) -> None:
        """Write the configuration, which takes effect at the next start."""
        if (found := re.search(r'\[(?:sow|queue)\."?([^"\]]+)', entities)) is not None:
            self.entity = found[1]
        decided = "" if entities.startswith("definitions") else 'definitions = "file"\n'
        head = f'{self._head}{decided}data_dir = "{self.directory / "state"}"\n'
        self.config.write_text(f"{head}\n{entities}", encoding="utf-8")

    def apply(self) -> None:
        """Create the topics."""
        apply(self.config, self._environment)

    def start(self) -> None:
        """Start the process, and wait until a shard is restored."""
        before = self.text().count("restored")
        command = ["-m", "lapse", "worker", "--config", str(self.config), "--no-supervise"]
        with self.log.open("ab") as log:
            self.process = fork_server.start(command, log, self._environment)
        deadline = time.monotonic() + PATIENCE_S
        while self.text().count("restored") == before:
            assert self.process.poll() is None, self.text()[-4000:]
            assert time.monotonic() < deadline, self.text()[-4000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process with SIGTERM, or with SIGKILL after 20 s."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def text(self) -> str:
        """Return the log."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Worker:
        self.apply()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
