"""Class archives: the JVM's own shortcut to classes that are loaded at each start (class data sharing).

A broker that starts with one takes half the time, and half the CPU. Whoever may write an archive can put classes of
theirs into a broker, so it is not kept in the cache: a suite of tests that starts many brokers writes one for itself,
into a directory of its own, and names it in the environment.

Beside the archive may stand a checkpoint: what Kafka's own tool writes into each empty data directory, and what does
not depend on the directory. A broker that finds one starts without that tool, which is a JVM of its own.
"""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "LAPSE_KAFKA_CLASS_ARCHIVE"
"""Names the archive that brokers with `quick_start` use if it is there."""

QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that is to start quickly."""


def options(archive: Path | None = None) -> list[str]:
    """Options with which a JVM uses an archive, unless it is of another JVM or of other jars; none without one.

    Args:
        archive: the file; None = the one that the environment names.
    """
    path = archive or Path(os.environ.get(VARIABLE, ""))
    if not path.is_file():
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def checkpoint() -> Path | None:
    """The checkpoint beside the archive; None without one."""
    path = os.environ.get(VARIABLE, "")
    return found if path and (found := beside(Path(path))).is_file() else None


def beside(archive: Path) -> Path:
    """Where the checkpoint of an archive stands."""
    return archive.with_suffix(".checkpoint")


def recording(path: Path) -> list[str]:
    """Options with which a JVM writes an archive at its end, of all that it has loaded."""
    return [f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds*=off"]
