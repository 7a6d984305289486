"""A broker that never stops by itself, for what is measured in milliseconds."""

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
    """A broker with its data in memory and a collector that works beside it; yields its address.

    An ordinary one stands still for tens of ms, now and then, while its collector is at work or its disk is, on a
    machine whose cores and disk it shares. Nobody could tell that from a worker that stands still.

    Raises:
        Skipped: there is no file system in memory, or too little room in it.
    """
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        raise Skipped(f"needs {_ROOM_BYTES >> 20} MiB of memory as files in {_MEMORY}")
    options = [f"-Xms{_HEAP_MB}m", "-XX:+UseZGC"]
    with (
        tempfile.TemporaryDirectory(prefix="lapse-kafka-", dir=_MEMORY, ignore_cleanup_errors=True) as directory,
        EmbeddedKafka(Path(directory), heap_mb=_HEAP_MB, java_options=options) as broker,
    ):
        # Workers take it before what their configuration says.
        os.environ["KAFKA_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
        yield broker.bootstrap_servers
