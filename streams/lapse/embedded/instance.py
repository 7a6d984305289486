"""Notes on a data directory which broker runs there."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from lapse.embedded.process import Jvm

_FILE = "broker.json"


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a broker."""

    pid: int
    started_s: float
    """When the process started, s since the epoch. It distinguishes the process from a later one with the same pid."""
    bootstrap_servers: str
    data: Path

    @classmethod
    def note(cls, data: Path, jvm: Jvm, bootstrap_servers: str) -> "Instance":
        """Note that `jvm` runs on `data`."""
        instance = cls(jvm.pid, jvm.started_s, bootstrap_servers, data)
        part = data / f"{_FILE}.part"
        part.write_bytes(
            orjson.dumps({"pid": jvm.pid, "started_s": jvm.started_s, "bootstrap_servers": bootstrap_servers})
        )
        part.replace(data / _FILE)
        return instance

    @classmethod
    def find(cls, data: Path) -> "Instance | None":
        """Return the broker that runs on `data`, or None. A note that a crash left behind counts as none."""
        try:
            noted = orjson.loads((data / _FILE).read_bytes())
            instance = cls(int(noted["pid"]), float(noted["started_s"]), str(noted["bootstrap_servers"]), data)
        except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
            return None
        return instance if instance.jvm is not None else None

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.data / "kafka.log"

    @property
    def jvm(self) -> Jvm | None:
        """The process, or None if it has ended."""
        return Jvm.running(self.pid, self.started_s)
