"""Tells systemd that the worker is healthy, so that it restarts one that hangs: its `WatchdogSec`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

_PER_PERIOD: Final = 3
"""How often systemd is notified in the time that it waits for."""


def begin(healthy: Callable[[], bool], environment: Mapping[str, str] = os.environ) -> threading.Thread | None:
    """Tell systemd in a thread of its own, as long as the worker is healthy, if systemd asks for it.

    Args:
        healthy: whether the worker is healthy; may wait. It raises RuntimeError once the worker ends.
        environment: has the variables by which systemd asks.

    Returns:
        The thread; None if nobody asks.
    """
    address, period_us = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
    asked = environment.get("WATCHDOG_PID", "")  # a child of the process that is meant inherits the variables
    if not address or not period_us.isdecimal() or asked not in ("", str(os.getpid())):
        return None
    notifying = threading.Thread(
        target=_notify, args=(healthy, address, int(period_us) / 1e6 / _PER_PERIOD), daemon=True
    )
    notifying.start()
    return notifying


def _notify(healthy: Callable[[], bool], address: str, every_s: float) -> None:
    pause = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        while True:
            try:
                if healthy():
                    notifier.sendto(b"WATCHDOG=1", f"\0{address[1:]}" if address.startswith("@") else address)
            except RuntimeError:
                return  # the worker ends
            except OSError:
                pass  # systemd takes nothing at present; if it never does, it does not wait for this either
            pause.wait(every_s)
