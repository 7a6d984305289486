"""Class archives: the JVM's own way to load the classes of each start faster (class data sharing).

A broker that starts with an archive takes half the time, and half the CPU. Anybody who may write an archive can put
their classes into a broker, so it is not kept in the cache. A suite of tests that starts many brokers writes its own
archive into its own directory, and names it in the environment.

A checkpoint may be beside the archive: the files that Kafka's own tool writes into each empty data directory, as far as
they do not depend on the directory. With a checkpoint, a broker starts without that tool, which would need another JVM.
"""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "LAPSE_KAFKA_CLASS_ARCHIVE"
"""Environment variable with the archive that brokers use if it exists, unless `java_options` are given."""

QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a JVM that starts quickly."""


def options(archive: Path | None = None) -> list[str]:
    """Return options with which a JVM uses an archive of this JVM and these jars; none without one.

    Args:
        archive: the file; None for the one in the environment.
    """
    path = archive or Path(os.environ.get(VARIABLE, ""))
    if not path.is_file():
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def checkpoint() -> Path | None:
    """Return the checkpoint beside the archive; None without one."""
    path = os.environ.get(VARIABLE, "")
    return found if path and (found := beside(Path(path))).is_file() else None


def beside(archive: Path) -> Path:
    """Return the path of an archive's checkpoint."""
    return archive.with_suffix(".checkpoint")


def recording(path: Path) -> list[str]:
    """Return options with which a JVM at its end writes an archive of all classes that it has loaded."""
    return [f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds*=off"]
