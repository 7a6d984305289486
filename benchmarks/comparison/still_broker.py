"""A broker without pauses of its own, for measurements in milliseconds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.comparison.contestant import Skipped
from lapse.embedded import EmbeddedKafka

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 1 << 30
_HEAP_MB: Final = 1024


@contextmanager
def still_broker() -> Iterator[str]:
    """Start a broker with its data in memory and a concurrent garbage collector. Yield its address.

    An ordinary broker sometimes pauses for tens of ms while its collector or its disk works. A measurement could not
    distinguish that from a pause of the worker.

    Raises:
        Skipped: There is no file system in memory, or too little space in it.
    """
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        raise Skipped(f"needs {_ROOM_BYTES >> 20} MiB of memory as files in {_MEMORY}")
    options = [f"-Xms{_HEAP_MB}m", "-XX:+UseZGC"]
    with (
        tempfile.TemporaryDirectory(prefix="lapse-kafka-", dir=_MEMORY, ignore_cleanup_errors=True) as directory,
        EmbeddedKafka(Path(directory), heap_mb=_HEAP_MB, java_options=options) as broker,
    ):
        # For workers this variable takes precedence over their configuration.
        os.environ["KAFKA_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
        yield broker.bootstrap_servers
