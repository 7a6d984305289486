"""`lapse top`: the queues of a cluster, live: depth by state, its change, age, subscriptions (Q15)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import click
import orjson
from rich.live import Live
from rich.table import Table

from lapse.cli import cluster
from lapse_client.connection import Connection, entities
from lapse_client.error import LapseError
from lapse_client.queue import Queue

_PATIENCE_S: Final = 5.0
_STATES: Final = (
    "available",
    "leased",
    "delayed",
    "transferring",
    "scheduled",
    "held",
    "unconfirmed",
    "dying",
    "depth",
)
Figures = dict[str, int]


class Watched:
    """One queue that is looked at again and again."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.figures: Figures = {}
        self.fault = ""
        self.per_s: float | None = None
        self._queue = Queue(name, connection=connection, timeout_s=_PATIENCE_S)
        self._looked_at: float | None = None

    def look(self) -> None:
        """Ask all shards; a queue that nobody runs does not answer, and that is a finding."""
        try:
            figures = self._queue.start().depth()
        except LapseError as error:
            self.fault, self.figures, self.per_s = str(error), {}, None
            self._looked_at = None
            return
        now = time.monotonic()
        if self._looked_at is not None:
            self.per_s = (figures["depth"] - self.figures["depth"]) / (now - self._looked_at)
        self.fault, self.figures, self._looked_at = "", figures, now

    def close(self) -> None:
        """Disconnect."""
        self._queue.close()

    def as_dict(self) -> Mapping[str, object]:
        """For programs."""
        return {"queue": self.name, **self.figures, **({"error": self.fault} if self.fault else {})}


@click.command()
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@cluster.options
@click.option("--json", "as_json", is_flag=True, help="Look once, and print JSON, one object per line.")
def top(names: tuple[str, ...], every: float, bootstrap_servers: str | None, as_json: bool) -> None:
    """Show queues live: depth by state, age, subscriptions."""
    try:
        connection = cluster.connection(bootstrap_servers)
        known = entities(connection.partitions(), sow=False)
        for name in names:
            connection.shards("queue", name)
    except LapseError as error:
        raise click.ClickException(str(error)) from error
    if not names and not known:
        raise click.ClickException("there are no queues on this cluster; `lapse apply` makes those of lapse.toml")
    with _watched(names or tuple(known), connection) as (queues, look):
        if as_json:
            look()
            for queue in queues:
                click.echo(orjson.dumps(queue.as_dict()))
            if any(queue.fault for queue in queues):
                raise click.exceptions.Exit(1)
            return
        with contextlib.suppress(KeyboardInterrupt), Live(_table(queues), auto_refresh=False) as live:
            while True:
                look()
                live.update(_table(queues), refresh=True)
                time.sleep(every)


class _Look:
    """Looks at all queues at once."""

    def __init__(self, queues: list[Watched], threads: ThreadPoolExecutor) -> None:
        self._queues = queues
        self._threads = threads

    def __call__(self) -> None:
        """Wait until every queue has answered, or has not in time."""
        list(self._threads.map(Watched.look, self._queues))


@contextlib.contextmanager
def _watched(names: tuple[str, ...], connection: Connection) -> Iterator[tuple[list[Watched], _Look]]:
    queues = [Watched(name, connection) for name in names]
    with ThreadPoolExecutor(max(1, min(32, len(queues)))) as threads:
        try:
            yield queues, _Look(queues, threads)
        finally:
            for queue in queues:
                queue.close()


def _table(queues: list[Watched]) -> Table:
    table = Table("queue", title="queues")
    for name in (*_STATES, "change/s", "oldest", "subscriptions"):
        table.add_column(name, justify="right")
    for queue in queues:
        figures = queue.figures
        if not figures:
            table.add_row(queue.name, *[""] * len(_STATES), "", "", "[red]no answer[/red]" if queue.fault else "…")
            continue
        table.add_row(
            f"{queue.name} (paused)" if figures.get("paused") else queue.name,
            *(f"{figures.get(name, 0):,}" for name in _STATES),
            "" if queue.per_s is None else f"{queue.per_s:+,.0f}",
            "" if figures.get("oldest_age_ms") is None else f"{figures['oldest_age_ms'] / 1000:,.1f} s",
            str(figures.get("subscriptions", "")),
        )
    return table
