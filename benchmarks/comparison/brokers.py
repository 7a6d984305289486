"""Starts brokers for single rows or runs, cold ones or ones warmed by a load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from benchmarks.comparison import contestant
from benchmarks.comparison.row import Row
from lapse.embedded import EmbeddedKafka

Environment = dict[str, str]
_WARMING_S = 600.0


@contextmanager
def fresh_broker() -> Iterator[Environment]:
    """Start a broker. Yield the environment variables for its contestants."""
    with EmbeddedKafka(heap_mb=1024, quick_start=False) as broker:
        yield environment_of(broker)


def environment_of(broker: EmbeddedKafka) -> Environment:
    """Return the environment variables that tell contestants their broker."""
    return {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, contestant.BROKER_PID: str(broker.jvm.pid)}


@contextmanager
def broker_of_row(row: Row, shared: Environment) -> Iterator[Environment]:
    """Yield the broker that a row's contestants share: the common one, or one warmed for this row."""
    if not row.warming:
        yield shared
        return
    with fresh_broker() as environment:
        contestant.compete("comparison.warming", {"messages": row.warming}, environment, _WARMING_S)
        yield environment


def broker_of_run(row: Row, environment: Environment) -> AbstractContextManager[Environment]:
    """Return the broker of one run: the row's, or a fresh one."""
    return fresh_broker() if row.fresh else nullcontext(environment)
