"""Prevents a child process from outliving its parent process. Run as a script, with the standard library only.

    python -I -S supervise.py PARENT_PID REMOVE_DIR|- COMMAND...

The parent may be killed with SIGKILL, and then cannot clean up. So this small process runs between parent and child. It
notices that its parent is gone (its parent pid changes), kills the child, and removes `REMOVE_DIR`. If the supervisor
itself is killed, Linux kills the child (`PR_SET_PDEATHSIG`). It prints the child's pid on its first line, passes
SIGTERM and SIGINT on, and exits with the child's status.
"""

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_WATCH_EVERY_S = 0.1


def _die_with(supervisor: int) -> None:
    """Ask Linux to kill this process when the supervisor's main thread ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it ended before this request
            os._exit(1)


def _watch(parent: int, child: subprocess.Popen[bytes], remove: str) -> None:
    """Wait until `parent` is gone, then kill the child, clean up and exit."""
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY_S)
    child.kill()  # this also ends a stopped process
    child.wait()
    if remove != "-":
        shutil.rmtree(remove, ignore_errors=True)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status, or 128 + n if signal n ended it."""
    parent, remove, command = int(arguments[0]), arguments[1], arguments[2:]
    # Start it in the main thread, because PDEATHSIG follows the thread that forked.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        preexec_fn=functools.partial(_die_with, os.getpid()),  # noqa: PLW1509  (no threads yet)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    os.write(1, f"{child.pid}\n".encode())
    os.close(1)
    watcher = threading.Thread(target=_watch, args=(parent, child, remove), daemon=True)
    watcher.start()
    status = child.wait()
    if os.getppid() != parent:
        watcher.join()  # it still has to clean up
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
