"""Measures how long a worker's event loop works without a pause, in CPU time, which other processes do not affect.

A `lapse` process that is started through this module notes each turn that took longer than a millisecond:

    python -m benchmarks.instruments.turns <file> worker --config lapse.toml
"""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

_EVERY_S: Final = 0.002
_LEAST_MS: Final = 1.0
_NOTE: Final = struct.Struct("<dff")


def longest(path: Path, since_s: float, until_s: float) -> tuple[float, float]:
    """Return the longest turn between two instants (s since the epoch): (ms of CPU, ms of the clock); zeros = none."""
    notes = [one for one in _NOTE.iter_unpack(_without_cut_note(path.read_bytes())) if since_s <= one[0] <= until_s]
    return max((one[1] for one in notes), default=0.0), max((one[2] for one in notes), default=0.0)


def _without_cut_note(data: bytes) -> bytes:
    return data[: len(data) // _NOTE.size * _NOTE.size]


class _Probe:
    """A timer of the event loop that measures the CPU of its thread since its last call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, out: BinaryIO) -> None:
        self._loop = loop
        self._out = out
        self._cpu_s = time.thread_time()
        self._at_s = time.perf_counter()

    def look(self) -> None:
        """Note the turn that has ended, and set the timer again."""
        cpu_s, at_s = time.thread_time(), time.perf_counter()
        cpu_ms, wall_ms = 1000 * (cpu_s - self._cpu_s), 1000 * (at_s - self._at_s - _EVERY_S)
        if cpu_ms >= _LEAST_MS or wall_ms >= 10 * _LEAST_MS:
            self._out.write(_NOTE.pack(time.time(), cpu_ms, max(0.0, wall_ms)))
        self._cpu_s, self._at_s = cpu_s, at_s
        self._loop.call_later(_EVERY_S, self.look)


def install(path: Path) -> None:
    """Measure every event loop of the main thread."""
    import uvloop

    out = path.open("ab", buffering=0)
    for kind in (uvloop.Loop, asyncio.BaseEventLoop):
        _watch(kind, out)


def _watch(kind: Any, out: BinaryIO) -> None:
    plain = kind.run_forever

    def run_forever(self: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is threading.main_thread():  # its loop runs the entities; others only fetch
            self.call_soon(_Probe(self, out).look)
        plain(self)

    kind.run_forever = run_forever


def main(arguments: Sequence[str]) -> None:
    """Run `lapse` with the rest of the arguments."""
    install(Path(arguments[0]))
    from lapse.cli import main as lapse

    lapse(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
