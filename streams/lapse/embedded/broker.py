"""The broker to use: the one in `KAFKA_BOOTSTRAP_SERVERS`, or else an embedded one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lapse.embedded.kafka import EmbeddedKafka


def given_broker() -> str | None:
    """Return `KAFKA_BOOTSTRAP_SERVERS`, or None if it is not set. If it is set, no broker is ever embedded."""
    return os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "").strip() or None


@contextmanager
def broker(
    data: Path | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    heap_mb: int = 512,
    quick_start: bool = True,
) -> Iterator[str]:
    """Yield bootstrap servers. If an embedded broker is started, it is stopped at the end of the block.

    The arguments are those of `EmbeddedKafka`, and have no effect on a given broker.

    Raises:
        EmbeddedError: The embedded broker cannot be started.
    """
    if (given := given_broker()) is not None:
        yield given
        return
    with EmbeddedKafka(data, properties=properties, heap_mb=heap_mb, quick_start=quick_start) as kafka:
        yield kafka.bootstrap_servers
