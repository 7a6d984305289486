"""Runs a peer's server for one contestant, on a free port, with its files in a temporary directory."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison.contestant import BROKER_PID, Skipped

_PATIENCE_S = 30.0


@contextmanager
def peer_server(command: Callable[[int, Path], Sequence[str | Path]]) -> Iterator[int]:
    """Run a server. Yield its port. Meanwhile its CPU counts as the broker's.

    Args:
        command: makes the command line from a port and a directory for the server's files.

    Raises:
        Skipped: The server does not start here.
    """
    with tempfile.TemporaryDirectory(prefix="lapse-benchmark-") as directory:
        port = _free_port()
        arguments = command(port, Path(directory))
        server = subprocess.Popen(arguments, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = os.environ.get(BROKER_PID)
        os.environ[BROKER_PID] = str(server.pid)
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not listens(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Skipped(f"{Path(arguments[0]).name} does not start here")
                time.sleep(0.05)
            yield port
        finally:
            if before is None:
                del os.environ[BROKER_PID]
            else:
                os.environ[BROKER_PID] = before
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Return whether a program accepts connections on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
