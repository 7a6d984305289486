"""A `lapse` process with a wrong wall clock: a file says by how many seconds it differs from the machine's.

The clock steps when the file changes while the process runs. The monotonic clock is right, as on a machine whose clock
is set.

    python skewed.py <file with seconds> worker --config lapse.toml ...
"""

import datetime as dt
import sys
import time
from pathlib import Path


def skew(path: Path) -> None:
    """Shift every function by which Python code reads the wall clock."""
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
    from lapse.cli import main as lapse  # after the change of the clock, which must precede all imports

    lapse(sys.argv[2:])


if __name__ == "__main__":
    main()
