"""Two deployments for tests of `lapse transfer`, which runs in processes that tests may kill on the way."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson

from lapse.transfer.mover import Mover
from support.processes import fork_server
from support.processes.deployment import Deployment

KILLED = """
import os, signal, sys
from lapse.transfer import copier, mover

def killed(owner, name, before):
    method = getattr(owner, name)
    def instead(*arguments):
        if not before:
            method(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, instead)

killed(*{
    "hold": (copier.Copier, "put", True),
    "put": (copier.Copier, "put", False),
    "confirm": (mover.Mover, "_accept", True),
    "accept": (mover.Mover, "_accept", False),
}[sys.argv.pop(1)])
from lapse.cli import main
main(["transfer", *sys.argv[1:]])
"""
"""A program that takes a step and the command's arguments, and kills itself at that step of the first round: before or
after `put`, before `confirm`, or after `accept`."""


class Sides(NamedTuple):
    """Two deployments: transfers go from `here` to `there`, or back."""

    here: Deployment
    there: Deployment

    def command(self, stem: str, *options: str, back: bool = False) -> list[str]:
        """Return the arguments of `lapse transfer` for a queue."""
        source, target = (self.there, self.here) if back else self
        to = ["--to", target.servers, "--to-queue", target.name(stem)]
        return [source.name(stem), "-b", source.servers, *to, *options]

    def transfer(self, stem: str, *options: str, code: int | None = 0) -> dict[str, Any]:
        """Run a transfer to its end. Return its JSON output, or its errors as `error`."""
        done = self.ended(stem, *options)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return orjson.loads(done.stdout) if done.stdout else {"error": done.stderr}

    def ended(self, stem: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run a transfer to its end. Return the process, which has printed JSON."""
        return fork_server.run(["-m", "lapse", "transfer", *self.command(stem, *options, "--json")], os.environ)

    def mover(self, stem: str, ident: str) -> Mover:
        """Return a transfer to run in this process."""
        here, there = self.here.connection, self.there.connection
        return Mover(here, self.here.name(stem), there, self.there.name(stem), None, ident)

    def killed(self, at: str, stem: str, *options: str) -> None:
        """Run a transfer that is killed in its first round, at a step of `KILLED`."""
        done = fork_server.run(["-c", KILLED, at, *self.command(stem, *options)], os.environ)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    @contextmanager
    def following(self, stem: str, back: bool = False) -> Iterator[fork_server.Process]:
        """Run `lapse transfer --follow` until the end of the block."""
        log = self.here.directory / f"follow-{stem}.log"
        with log.open("ab") as output:
            arguments = ["-m", "lapse", "transfer", *self.command(stem, "--follow", back=back)]
            process = fork_server.start(arguments, output, os.environ)
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGKILL, -signal.SIGTERM), log.read_text("utf-8")


class Consumer:
    """A consumer of one side's queue, which works until it is closed."""

    def __init__(self, side: Deployment, stem: str, backlog: int, pause_s: float = 0.0, text: str = "") -> None:
        self.got: dict[bytes, int | None] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._consume, args=(side, stem, backlog, pause_s, text))

    def _consume(self, side: Deployment, stem: str, backlog: int, pause_s: float, text: str) -> None:
        with side.subscriber(stem, backlog, filter=text or None) as subscriber:
            while not self._over.is_set():
                for delivery in subscriber.messages(0.1):
                    self.got[delivery.value or b""] = delivery.expires_at_ms
                    self._over.wait(pause_s)
                    delivery.acknowledge()
                    if self._over.is_set():
                        break

    def __enter__(self) -> "Consumer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
