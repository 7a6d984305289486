"""A broker to talk to: the one that `KAFKA_BOOTSTRAP_SERVERS` names, else an embedded one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lapse.embedded.kafka import EmbeddedKafka


def given_broker() -> str | None:
    """Return `KAFKA_BOOTSTRAP_SERVERS`, or None when it is not set; when it is, nothing is ever embedded."""
    return os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "").strip() or None


@contextmanager
def broker(
    data: Path | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    heap_mb: int = 512,
    quick_start: bool = True,
) -> Iterator[str]:
    """Yield bootstrap servers; an embedded broker, if one is started, ends with the block.

    The arguments are those of `EmbeddedKafka`, and have no effect on a broker that is given.

    Raises:
        EmbeddedError: The embedded broker cannot be started.
    """
    if (given := given_broker()) is not None:
        yield given
        return
    with EmbeddedKafka(data, properties=properties, heap_mb=heap_mb, quick_start=quick_start) as kafka:
        yield kafka.bootstrap_servers
