"""Starts a JVM that ends with its parent process, or, if detached, goes on until it is stopped."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from lapse.embedded import supervise
from lapse.embedded.errors import BrokerFailed

_STOPS_WITHIN_S: Final = 10.0


class Jvm:
    """A running Java process. Signals go only to this process, never to another one that got its pid later."""

    def __init__(self, process: psutil.Process, reap: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process
        self._reap = reap

    @classmethod
    def supervised(cls, command: Sequence[str], log: Path, *, remove: Path | None = None) -> "Jvm":
        """Start `command`, which is killed when this process ends in any way; output goes to `log`.

        Args:
            command: Program and arguments.
            log: File to append standard output and error to.
            remove: Directory to delete when this process ends without having stopped the JVM.

        Raises:
            BrokerFailed: The program could not be started.
        """
        # -I -S: the standard library only, which starts in a few milliseconds.
        arguments = [sys.executable, "-I", "-S", supervise.__file__, str(os.getpid()), str(remove or "-"), *command]
        with log.open("ab") as output:
            supervisor = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(),
                start_new_session=True,  # only this process gets Ctrl-C, and stops the JVM in order
            )
        assert supervisor.stdout is not None
        with supervisor.stdout as pipe:
            line = pipe.readline()
        try:
            return cls(psutil.Process(int(line)), supervisor)
        except (ValueError, psutil.NoSuchProcess) as error:
            supervisor.wait()
            raise BrokerFailed(f"{command[0]} could not be started; its output is in {log}.") from error

    @classmethod
    def detached(cls, command: Sequence[str], log: Path) -> "Jvm":
        """Start `command`, which goes on after this process ends; output goes to `log`.

        Raises:
            BrokerFailed: The program could not be started.
        """
        with log.open("ab") as output:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment(),
                    start_new_session=True,
                )
            except OSError as error:
                raise BrokerFailed(f"{command[0]} could not be started: {error.strerror}.") from error
        return cls(psutil.Process(child.pid), child)

    @classmethod
    def running(cls, pid: int, started_s: float) -> "Jvm | None":
        """Return the process `pid` that started at `started_s` (s since the epoch); None if it has ended."""
        try:
            process = psutil.Process(pid)
            same = abs(process.create_time() - started_s) < 1.0
        except psutil.Error:
            return None
        jvm = cls(process)
        return jvm if same and jvm.alive else None

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._process.pid)

    @property
    def started_s(self) -> float:
        """When the process started, in seconds since the epoch; with the pid it identifies the process."""
        return float(self._process.create_time())

    @property
    def alive(self) -> bool:
        """Whether the process runs (a paused one does)."""
        try:
            return bool(self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    @property
    def resident_bytes(self) -> int:
        """Memory in use, in bytes; 0 when the process is gone."""
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return 0

    def terminate(self, timeout_s: float) -> None:
        """Ask the process to end; kill it if it does not end within `timeout_s`."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.terminate()
            self._process.resume()  # a paused process would not react
        if not self._gone_within(timeout_s):
            self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()
        self._gone_within(10)

    def pause(self) -> None:
        """Freeze the process with SIGSTOP, and wait until it stands still, which takes time on a busy machine."""
        freeze(self._process)

    def resume(self) -> None:
        """Resume a frozen process with SIGCONT."""
        self._process.resume()

    def _gone_within(self, timeout_s: float) -> bool:
        """Wait for the end of the process, and of its supervisor; return whether it came in time."""
        try:
            if self._reap is not None:
                self._reap.wait(timeout_s)
            else:
                self._process.wait(timeout_s)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            return False
        return True


def freeze(process: psutil.Process) -> None:
    """Send SIGSTOP, and wait until the process stands still: before that, any other signal still ends it."""
    process.suspend()
    give_up = time.monotonic() + _STOPS_WITHIN_S
    while not _stands_still(process) and time.monotonic() < give_up:
        time.sleep(0.001)


def _stands_still(process: psutil.Process) -> bool:
    """Whether every thread is stopped."""
    threads = Path(f"/proc/{process.pid}/task")
    if not threads.exists():  # not Linux
        return bool(process.status() == psutil.STATUS_STOPPED)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile: look again
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads.iterdir()]
        return set(states) <= {"T", "t"}
    return False


def environment() -> dict[str, str]:
    """Return our environment for a JVM: without CLASSPATH, and with a UTF-8 locale if Python's paths are in UTF-8."""
    given = {name: value for name, value in os.environ.items() if name != "CLASSPATH"}
    return given | {"LC_ALL": "C.UTF-8"} if sys.getfilesystemencoding() == "utf-8" else given
