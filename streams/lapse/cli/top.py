"""`lapse top`: live figures of a cluster's queues: depth by state, its change, age, subscriptions (Q15)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Final

import click
import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lapse.cli import cluster
from lapse.option_type import Number
from lapse.protocol import topic
from lapse.protocol.command_field import QUEUE_STATES
from lapse.tables import fitted, print_table
from lapse_client.error import EntityDeleted, LapseError, UnknownEntity, after_silence
from lapse_client.kafka.connection import Connection, entities
from lapse_client.queue.queues import Figures, Queues

_PATIENCE_S: Final = 3.0
_BROKER_S: Final = 1.0
_ANEW_S: Final = 3.0
"""How often to look for queues that were created meanwhile, s."""

_NONE: Final = "there are no queues on this cluster; `lapse apply` makes those of lapse.toml"
_STATES: Final = (*QUEUE_STATES, "depth")


class Watched:
    """A queue whose figures are requested again and again.

    Attributes:
        name: its name.
        figures: its last figures; empty before the first answer, and after a failure.
        fault: why there are no figures; empty if there are.
        is_missing: whether it does not exist; it may be created anew.
        per_s: the change of the depth per second; None while unknown.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.figures: Figures = {}
        self.fault = ""
        self.is_missing = False
        self.per_s: float | None = None
        self._looked_at: float | None = None

    def note(self, answer: Future[Figures], lacking: Sequence[str], user: str) -> None:
        """Store the queue's answer. If there is none, no worker runs the queue: store that as the fault."""
        try:
            figures = answer.result(timeout=0)
        except (LapseError, TimeoutError) as error:
            answer.cancel()
            self.is_missing = isinstance(error, EntityDeleted | UnknownEntity)
            silent = f"{self.name}: no answer within {_PATIENCE_S:g} s. {after_silence(lacking, user)}"
            self.fail(str(error) if isinstance(error, LapseError) else silent)
            return
        now = time.monotonic()
        if self._looked_at is not None:
            self.per_s = (figures["depth"] - self.figures["depth"]) / (now - self._looked_at)
        self.fault, self.figures, self._looked_at, self.is_missing = "", figures, now, False

    def fail(self, fault: str) -> None:
        """Store why there is no answer, and drop the old figures."""
        self.fault = fault
        self.figures, self.per_s, self._looked_at = {}, None, None

    def as_dict(self) -> Mapping[str, object]:
        """Return the figures for JSON."""
        return {"queue": self.name, **self.figures, **({"error": self.fault} if self.fault else {})}


@click.command()
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--every", type=Number(0.1), default=1.0, show_default=True, help="Seconds between two updates.")
@cluster.options
@click.option("--json", "as_json", is_flag=True, help="Show the figures once, as JSON, one object per line.")
def top(names: tuple[str, ...], every: float, bootstrap_servers: str | None, as_json: bool) -> None:
    """Show queues live: depth by state, age, subscriptions."""
    try:
        connection = cluster.connection(bootstrap_servers)
        known = entities(connection.partitions(), sow=False)
        for name in names:
            connection.shards("queue", name)
        blind = None if names or known else connection.blind("queues", topic.PREFIX)
    except LapseError as error:
        raise click.ClickException(str(error)) from error
    if not names and not known:
        raise click.ClickException(str(blind or _NONE))
    with _watched(names or tuple(known), connection, follows=not names) as (queues, look):
        if as_json:
            look()
            for queue in queues:
                click.echo(orjson.dumps(queue.as_dict()))
            if faults := dict.fromkeys(queue.fault for queue in queues if queue.fault):
                raise click.ClickException("; ".join(faults))
            return
        with contextlib.suppress(KeyboardInterrupt), _table_printer(queues) as show:
            while True:
                look()
                show(_table(queues))
                time.sleep(every)


class _Look:
    """Requests the figures of all queues at once, over one connection.

    Args:
        queues: the queues. If it follows, this list changes.
        connection: connection to the cluster.
        follows: whether it looks for queues that are created meanwhile, and leaves out those that are gone.
    """

    def __init__(self, queues: list[Watched], connection: Connection, follows: bool) -> None:
        self._queues = queues
        self._follows = follows
        self._connection = connection
        self._client: Queues | None = None
        self._looked_at = time.monotonic()

    def __call__(self) -> None:
        """Request the figures, and wait until every queue has answered or the time is over."""
        if time.monotonic() - self._looked_at >= _ANEW_S:
            self._looked_at = time.monotonic()
            if self._changes() or any(queue.is_missing for queue in self._queues):
                self.close()  # a client does not know a queue that was created after its start, or anew
        try:
            if self._client is None:
                names = [queue.name for queue in self._queues]
                self._client = Queues(names, connection=self._connection, timeout_s=_PATIENCE_S).start()
            answers = [self._client.depth(queue.name) for queue in self._queues]
        except LapseError as error:
            self.close()  # the next request connects again
            for queue in self._queues:
                queue.fail(str(error))
            return
        wait(answers, _PATIENCE_S)
        lacking = self._lacking(
            [queue.name for queue, answer in zip(self._queues, answers, strict=True) if not answer.done()]
        )
        for queue, answer in zip(self._queues, answers, strict=True):
            queue.note(answer, lacking.get(queue.name, ()), self._connection.user)

    def _changes(self) -> bool:
        """Follow which queues there are; return whether that has changed. While no broker answers, it has not."""
        if not self._follows:
            return False
        try:
            self._connection.await_broker(_BROKER_S)
            names = set(entities(self._connection.partitions(), sow=False))
        except LapseError:
            return False
        known = {queue.name: queue for queue in self._queues}
        if names == known.keys() or not names:
            return False
        self._queues[:] = [known.get(name) or Watched(name) for name in sorted(names)]
        return True

    def _lacking(self, silent: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the missing topics of queues that have not answered; nothing if no broker answers either."""
        if not silent:
            return {}
        try:
            self._connection.await_broker(_BROKER_S)  # `partitions` would wait for long
            topics = self._connection.partitions()
            return {name: self._connection.lacking(name, topics) for name in silent}
        except LapseError:
            return {}

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None


@contextlib.contextmanager
def _watched(
    names: tuple[str, ...], connection: Connection, *, follows: bool = False
) -> Iterator[tuple[list[Watched], _Look]]:
    queues = [Watched(name) for name in names]
    look = _Look(queues, connection, follows)
    try:
        yield queues, look
    finally:
        look.close()


@contextlib.contextmanager
def _table_printer(queues: list[Watched]) -> Iterator[Callable[[Table], None]]:
    """Return what prints a table: in place of the last one on a terminal, elsewhere below it."""
    if not Console().is_terminal:
        yield print_table
        return
    with Live(console=Console(emoji=False), auto_refresh=False) as live:
        yield lambda table: live.update(fitted(table, live.console, ("", "0", "+0")), refresh=True)


def _table(queues: list[Watched]) -> Table:
    faults = dict.fromkeys(queue.fault for queue in queues if queue.fault)
    table = Table("queue", title="queues", caption=Text("\n".join(faults)) if faults else None, caption_justify="left")
    for name in (*_STATES, "change/s", "oldest", "subscriptions"):
        table.add_column(name, justify="right")
    for queue in queues:
        figures = queue.figures
        if not figures:
            table.add_row(queue.name, *[""] * len(_STATES), "", "", Text("no answer", "red") if queue.fault else "…")
            continue
        table.add_row(
            f"{queue.name} (paused)" if figures.get("paused") else queue.name,
            *(f"{figures.get(name, 0):,}" for name in _STATES),
            "" if queue.per_s is None else f"{queue.per_s:+,.0f}",
            "" if figures.get("oldest_age_ms") is None else f"{figures['oldest_age_ms'] / 1000:,.1f} s",
            str(figures.get("subscriptions", "")),
        )
    return table
