"""Starts the brokers of the benchmark: a warm one that rows share, and fresh ones for single runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

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


class SharedBroker(AbstractContextManager["SharedBroker"]):
    """The broker of all rows that do not ask for fresh ones. It starts for the first of them, and is warmed then.

    A broker just started compiles its code, on cores that worker and clients need as well. A row's figures must not
    depend on the rows before it.

    Args:
        warming: how many messages the broker serves before the first row.
    """

    def __init__(self, warming: int) -> None:
        self._warming = warming
        self._running = ExitStack()
        self._environment: Environment | None = None

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def environment(self) -> Environment:
        """Return the environment variables for contestants.

        Raises:
            Failed: Warming the broker failed.
        """
        if self._environment is None:
            started = self._running.enter_context(fresh_broker())
            contestant.compete("comparison.warming", {"messages": self._warming}, started, _WARMING_S)
            self._environment = started
        return self._environment


def broker_of_run(row: Row, shared: SharedBroker) -> AbstractContextManager[Environment]:
    """Return the broker of one run: the shared one, a fresh one, or none."""
    if not row.kafka:
        return nullcontext({})
    return fresh_broker() if row.fresh else nullcontext(shared.environment())
