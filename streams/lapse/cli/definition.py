"""`lapse definitions`, and the changes that `lapse apply` writes to the definitions topic (Q23, C64, C65)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click
import orjson
from rich.table import Table

from lapse.cli import cluster
from lapse.cli.config_option import CONFIG
from lapse.cli.recovery import Recovery, recoveries
from lapse.config import Config, ConfigError, load
from lapse.config.definition import Definition, DefinitionChange, conflicts, find_change, in_file
from lapse.config.early_beginning import early_beginning
from lapse.core.near_name import did_you_mean
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command_field import QUEUE_STATES
from lapse.runtime.topics.cluster import FIRST_ANSWER_S, Cluster
from lapse.runtime.topics.definition_draft import refusal
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange
from lapse.runtime.topics.deleted_entities import left, settled
from lapse.runtime.topics.topology import TopologyError
from lapse.tables import print_table
from lapse_client.error import LapseError
from lapse_client.queue.queue import Queue
from lapse_client.sow.sow_client import SowClient

_LIVE_S: Final = 4.0
"""How long to wait for the shards' counts, in seconds. Without a worker no shard answers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of definitions by `lapse apply`.

    Attributes:
        topic: the definitions topic.
        beside: directory of the files that definitions name.
        changes: the allowed changes.
        refused: the reasons why other changes are refused.
        kept: defined entities that are not in the file. They stay.
    """

    topic: DefinitionsTopic
    beside: Path
    changes: list[DefinitionChange] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def show(self) -> None:
        """Print the plan for people."""
        if self.changes:
            table = Table("entity", "version", "what changes")
            for one in self.changes:
                table.add_row(one.after.name, str(one.after.version), ", ".join(one.keys) or "new")
            print_table(table)
        for recovery in self.recoveries:
            click.echo(recovery.description())
        for name in self.kept:
            click.echo(
                f"{name} is defined, and not in the file: it stays. `lapse queue delete`, or `sow delete-topic`."
            )

    @property
    def recoveries(self) -> list[Recovery]:
        """The rewinds that changed recovery points cause."""
        return recoveries(self.changes)

    def facts(self) -> dict[str, object]:
        """Return the plan for `--json`."""
        defined = [{"entity": one.after.name, "version": one.after.version, "keys": one.keys} for one in self.changes]
        return {"defined": defined, "refused": self.refused, "kept": self.kept}

    def publish(self) -> None:
        """Write the changes.

        Raises:
            TopologyError: the cluster refuses, or a definition was changed meanwhile.
        """
        try:
            self.topic.publish([one.after for one in self.changes], self.beside)
        except OutdatedChange as error:
            raise TopologyError(f"nothing was defined: {error}") from error


def opened(config: Config) -> DefinitionsTopic:
    """Return the definitions topic, after a broker has answered.

    Raises:
        TopologyError: no broker answered within some seconds.
    """
    Cluster(config).metadata(FIRST_ANSWER_S)
    return DefinitionsTopic(config)


def no_topic(name: str) -> str:
    """Return the text on a topic of definitions that is missing."""
    return f"{name} is not there, or we may not see it: each worker serves its own lapse.toml. `lapse apply` creates it"


def plan(path: Path, config: Config) -> Plan | None:
    """Return the changes of definitions by `lapse apply`; None if the deployment has definitions in the file only.

    Raises:
        TopologyError: the definitions cannot be read.
    """
    if config.lapse.definitions == "file":
        return None
    topic, own = opened(config), in_file(path)
    there, deleted = settled(topic.defined, config, own)
    if topic.open_from is not None:
        try:
            topic.end_open_change()
        except OutdatedChange as error:
            raise TopologyError(f"nothing was defined: {error}") from error
        there, deleted = settled(topic.defined, config, own)
    made = Plan(topic, path.absolute().parent, kept=[name for name in there if name not in own])
    for name, one in own.items():
        before = there.get(name)
        made_before = before.made if before is not None and name not in deleted else ()
        after = replace(one, version=topic.versions.get(name, 0) + 1, made=made_before)
        try:
            # A deleted one is defined anew: workers that have stopped serving it do not look at it before.
            differs = find_change(None if name in deleted else before, after, made.beside)
        except ValueError:  # the present definition is not understood, and the checked one replaces it
            differs = DefinitionChange(None, after)
        if differs is None:
            continue
        why = early_beginning(config.queue.get(name), differs.begins_anew, latest_ms(config))
        why = f"{name}: {why}" if why else refusal(differs, lambda differs: live(differs, config))
        made.refused.append(why) if why else made.changes.append(differs)
    # The file fits together, but it may not fit beside entities that only the topic has.
    others = [one for name, one in there.items() if name not in deleted]
    unfit = conflicts(config, others, [one.after for one in made.changes], made.beside)
    refused = [*made.refused, *(f"{name}: {fault}" for name, fault in unfit.items())]
    return replace(made, refused=refused, changes=[one for one in made.changes if one.after.name not in unfit])


def latest_ms(config: Config) -> int:
    """Return the latest instant that the broker's clock may show by this machine's, ms since the epoch (L13)."""
    return int(time.time() * 1000) + config.lapse.max_clock_skew


def live(change: DefinitionChange, config: Config) -> dict[str, int] | None:
    """Return how many live messages of a queue forbid a change, or 1 for a SOW topic with records.

    Returns:
        The number as that of the topic `""`; None if no worker answers.
    """
    name = change.after.name
    try:
        connection = cluster.connection(config.lapse.brokers)
        if change.after.kind == "sow":
            with SowClient(name, connection=connection, timeout_s=_LIVE_S) as client:
                return {"": sum(1 for _ in client.query(top_n=1))}
        with Queue(name, connection=connection, timeout_s=_LIVE_S) as queue:
            counts = queue.depth()
            if any(counts.get(state) for state in QUEUE_STATES) and change.only_takes_topics:
                return _live_of_other_topics(change, queue, config)
        return {"": sum(counts.get(state) or 0 for state in QUEUE_STATES)}
    except LapseError:
        return None


def _live_of_other_topics(change: DefinitionChange, queue: Queue, config: Config) -> dict[str, int]:
    """Count the live messages of topics that the queue will not read any more."""
    stay = [topic for topic in Cluster(config).metadata(FIRST_ANSWER_S).topics if not change.bars(topic)]
    others = f"NOT TOPIC() IN ({', '.join(map(repr, stay))})" if stay else "TRUE"
    counts = queue.depth(filter=others)  # dying messages match no filter
    dying = sum(change.bars(Bookmark.parse(one.bookmark).topic) for one in queue.peek(state="dying"))
    return {"": dying + sum(counts.get(state) or 0 for state in QUEUE_STATES)}


@click.command()
@click.argument("names", nargs=-1)
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def definitions(names: tuple[str, ...], config: Path, as_json: bool) -> None:
    """Show the definitions of a deployment, by version.

    Reads the topic that `lapse apply` writes to. NAMES limits it to some entities. Deleted ones are left out.
    """
    try:
        settings = load(config)
        topic = opened(settings)
        there = topic.read_if_there()
        if there is None:
            raise TopologyError(no_topic(topic.name))
        found = left(there.found, Cluster(settings).metadata(FIRST_ANSWER_S).topics.keys())
    except (ConfigError, TopologyError) as error:
        raise click.ClickException(str(error)) from error
    wanted = names or tuple(sorted(found))
    if missing := [name for name in wanted if name not in found]:
        meant = did_you_mean(missing[0], found)
        raise click.ClickException(
            f"{', '.join(missing)}: not defined on {topic.name}{meant}; `lapse apply` defines what lapse.toml has"
        )
    known, faults = readable({name: found[name] for name in wanted})
    _print(known, as_json)
    if hidden := topic.open_change():
        click.echo(f"Warning: {hidden}", err=True)
    if faults:
        raise click.ClickException(
            "\n".join(
                [*faults, "`lapse apply`, or `lapse queue create` and `lapse sow create`, replace what cannot be read"]
            )
        )


def readable(found: Mapping[str, bytes]) -> tuple[list[Definition], list[str]]:
    """Return the readable definitions, and a text on the fault of each other one."""
    known: list[Definition] = []
    faults: list[str] = []
    for name, value in found.items():
        try:
            known.append(Definition.decode(name, value))
        except ValueError as error:
            faults.append(str(error))
    return known, faults


def _print(found: Iterable[Definition], as_json: bool) -> None:
    if as_json:
        for one in found:
            click.echo(orjson.dumps({"entity": one.name, "command": "", "made": [], **orjson.loads(one.encode())}))
        return
    table = Table("entity", "kind", "version", "origin", "settings")
    for one in found:
        settings = ", ".join(f"{key} = {orjson.dumps(value).decode()}" for key, value in sorted(one.settings.items()))
        table.add_row(one.name, one.kind, str(one.version), one.origin, settings)
    print_table(table)
