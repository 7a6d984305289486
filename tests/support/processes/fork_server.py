"""Starts Python processes as forks of one that has imported lapse, each in a process group of its own.

The imports of a worker take 0.9 s of CPU, most of what a test's worker takes at all. The fork runs the same program,
with its own arguments, environment, output, signals and end. Each pytest process has its own server, which starts with
the first process and ends with the pytest process. Processes that are left then end, too. Do not use it for a process
that must begin before any import, or whose start is tested.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

_IMPORTED = (
    "lapse.cli.worker",
    "lapse.cli.gateway",
    "lapse.cli.replicate",
    "lapse.cli.transfer",
    "lapse.replication.replicator",
    "lapse.runtime.assembly",
    "lapse.runtime.worker_log",
    "lapse.runtime.topics.cluster",
    "lapse.runtime.topics.definitions",
    "lapse.transfer.follower",
    "lapse.transfer.link",
    "lapse_client",
    "lapse_gateway.server",
    "faust.worker",
    "uvloop",
)
_LONGEST_REQUEST = 1 << 20
_STATUS = struct.Struct("i")


class Forked:
    """A forked process, with the parts of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, arguments: Sequence[str], ended: int) -> None:
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds for the end of the process, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs.
        """
        with self._lock:
            if self.returncode is None:
                ended = select.poll()  # `select` takes no descriptor above 1,023, which clients of Kafka soon use up
                ended.register(self._ended, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
                status = os.read(self._ended, _STATUS.size)
                assert status, "the fork server has ended before this process"
                os.close(self._ended)
                self.returncode = os.waitstatus_to_exitcode(*_STATUS.unpack(status))
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = "Forked | subprocess.Popen[bytes]"


class _Server:
    """The fork server of this pytest process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's threads would not survive a fork
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], outputs: list[int]) -> Forked:
        request = {"arguments": list(arguments), "environment": dict(environment), "directory": str(Path.cwd())}
        ended, ends = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], [*outputs, ends])
                pid = self._control.recv(_LONGEST_REQUEST)
        finally:
            os.close(ends)
        assert pid, f"the fork server has ended with {self._process.wait(10)}"
        return Forked(int(pid), arguments, ended)


@functools.cache
def _first_server() -> _Server:
    return _Server()


_STARTING = threading.Lock()
"""Threads that start their first processes at once share a server: one that nobody keeps would end with its process."""


def _server() -> _Server:
    with _STARTING:
        return _first_server()


def start(
    arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str], errors: IO[bytes] | None = None
) -> Process:
    """Start a Python process, as `python <arguments>` would: a module (-m), code (-c), or a file.

    Args:
        arguments: the arguments of the interpreter.
        output: an open file for the output.
        environment: the whole environment.
        errors: an open file for the errors; None = with the output.
    """
    if sys.platform != "linux":  # system libraries of other systems do not survive a fork
        return fresh(arguments, output, environment, errors)
    return _server().start(arguments, environment, [output.fileno(), (errors or output).fileno()])


def run(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run a Python process, and return its output, its errors and its exit code."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(arguments, output, environment, errors)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return subprocess.CompletedProcess(arguments, code, *texts)


def fresh(
    arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str], errors: IO[bytes] | None = None
) -> Process:
    """Start a Python process as `start` does, but with a new interpreter, which has imported nothing yet."""
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=output, stderr=errors or output, env=environment, process_group=0
    )


def _prepare() -> None:
    """Do what each worker does at its start, with the same result: 0.15 s of CPU, which is most of such a start.

    This is the parser of expressions, and Faust's search through all installed packages for extensions of its own.
    """
    from faust.fixups import FIXUPS
    from faust.serializers.codecs import get_codec
    from faust.stores import STORES
    from faust.transport.drivers import TRANSPORTS

    from lapse.core.expression.parser import grammar

    grammar()
    get_codec("raw")
    for extensions, name in ((FIXUPS, "django"), (STORES, "memory"), (TRANSPORTS, "aiokafka")):
        extensions.get_alias(name)


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request until the other side closes. Return in the forks only, with their request."""
    for module in _IMPORTED:
        importlib.import_module(module)
    _prepare()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "an imported module has begun a thread"
    gc.collect()
    gc.freeze()
    wakes, wake = os.pipe()
    for end in (wakes, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready = select.select([control, wakes], [], [])[0]
        if wakes in ready:
            os.read(wakes, 4096)
            _report_ended(running)
        if control not in ready:
            continue
        data, files, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, 3)
        if not data:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            os._exit(0)
        output, errors, ends = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            control.close()
            for file in (wakes, wake, *files, *running.values()):
                os.close(file)
            return json.loads(data)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # before its id is sent, as tests may signal the group at once
        os.close(output)
        os.close(errors)
        running[pid] = ends
        control.send(str(pid).encode())


def _report_ended(running: dict[int, int]) -> None:
    """Report the exit status of children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ends = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(ends, _STATUS.pack(status))
        os.close(ends)


def _run(arguments: list[str]) -> None:
    """Do what `python <arguments>` does."""
    match arguments:
        case ["-m", module, *_]:
            sys.argv, sys.path[0] = arguments[1:], str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case _:
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _run(request["arguments"])
