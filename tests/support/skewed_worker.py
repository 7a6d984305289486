"""A `lapse` process whose wall clock is wrong: it differs from the machine's by what stands in a file.

The file may change while the process runs: the clock steps. Only the wall clock is wrong; the monotonic one goes on as
it does on a machine whose clock is set.

    python skewed_worker.py <file with seconds> worker --config lapse.toml ...
"""

import datetime as dt
import sys
import time
from pathlib import Path


def skew(path: Path) -> None:
    """Shift every way in which Python code asks for the wall clock."""
    true_time, true_time_ns = time.time, time.time_ns

    def ahead_s() -> float:
        return float(path.read_text())

    time.time = lambda: true_time() + ahead_s()
    time.time_ns = lambda: true_time_ns() + int(ahead_s() * 1e9)

    class Skewed(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Skewed":
            return cls.fromtimestamp(time.time(), tz)

    dt.datetime = Skewed  # type: ignore[misc]


def main() -> None:
    skew(Path(sys.argv[1]))
    from lapse.cli import main as lapse  # the clock has to be wrong before anything is imported

    lapse(sys.argv[2:])


if __name__ == "__main__":
    main()
