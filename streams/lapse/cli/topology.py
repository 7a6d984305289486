"""`lapse apply` and `lapse check`: compare the cluster with the configuration, and make it fit."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
import orjson
from rich.table import Table
from rich.text import Text

from lapse.cli.config_option import CONFIG
from lapse.cli.confirmation import confirm
from lapse.cli.definition import Plan, latest_ms, no_topic, plan
from lapse.config import Config, ConfigError, key, load
from lapse.config.decided_entities import decide
from lapse.config.definition import keep_entities
from lapse.config.early_beginning import early_beginning
from lapse.config.recovery_point import BEGINNING
from lapse.core.expression.civil import format_instant
from lapse.core.shard.retirement import Cause
from lapse.protocol import topic as names
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.runtime.topics.deleted_entities import await_removals, left
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.standing import Standing
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.tables import print_table
from lapse_client.reading.count_text import count_text

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_MOST_NAMED: Final = 20

_NOUNS: Final = {"write": "definition", "wrote": "definition", "rewind": "queue"}
"""By verb: the noun that `lapse apply` counts, if it is not topics."""

_DONE: Final = {"create": "created", "change": "changed", "give rights on": "gave rights on", "write": "wrote"}


def _sentence(counts: Mapping[str, int]) -> str:
    """Return the counts that are not 0 in words, by verb, such as `Create 3 topics, write 2 definitions`."""
    text = ", ".join(
        f"{verb} {count_text(count, _NOUNS.get(verb, 'topic'))}" for verb, count in counts.items() if count
    )
    return text[:1].upper() + text[1:]


def _loaded(path: Path) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _look(config: Config, *, rights: bool = False) -> tuple[Cluster, Topology]:
    try:
        cluster = Cluster(config)
        return cluster, cluster.topology(rights=rights)
    except TopologyError as error:
        raise click.ClickException(str(error)) from error


def _show(differences: list[Difference]) -> None:
    table = Table("topic", "what", "mended by")
    for one in differences:
        table.add_row(one.topic, one.what, one.mended or Text("you", style="red"))
    print_table(table)


def _changes_as_json(
    created: list[str], changed: list[str], granted: list[str], differences: list[Difference], planned: Plan | None
) -> dict[str, object]:
    facts: dict[str, object] = {"created": created, "changed": changed, "granted": granted}
    facts |= {"defined": [], "refused": [], "kept": []} if planned is None else planned.facts()
    return {**facts, "differences": [one.facts for one in differences]}


def _beginnings(topology: Topology, differing: Mapping[str, Sequence[str]] = MappingProxyType({})) -> list[Difference]:
    """Return the new queues, and those with another beginning than is defined, that would begin in the future (Q16)."""
    found: list[Difference] = []
    for name, queue in topology.config.queue.items():
        new = topology.standing(name) in (Standing.NEW, Standing.DELETED)
        begins_anew = new or BEGINNING in differing.get(name, ())
        if why := early_beginning(queue, begins_anew, latest_ms(topology.config)):
            found.append(Difference(names.commands(name), f"queue {name}: {why}", bars=(name,)))
    return found


def _ends(cluster: Cluster, entities: Collection[str]) -> list[Difference]:
    """Return the entities whose end is decided and whose topics are all there still (C4)."""
    try:
        ends = cluster.ending(entities)
    except TopologyError as error:
        raise click.ClickException(str(error)) from error
    found: list[Difference] = []
    for name, end in sorted(ends.items()):
        why = "by command" if end.cause is Cause.DELETE else "because nobody used it"
        what = (
            f"{name} is being deleted since {format_instant(end.since_ms)}, {why}. A worker removes its topics once "
            "its messages have left. If that takes minutes, see that a worker runs, and read its log. Then remove "
            f"{name} from the configuration, or create it anew with `lapse apply`"
        )
        found.append(Difference(names.commands(name), what, bars=(name,)))
    return found


@click.command()
@CONFIG
@click.option("--yes", is_flag=True, help="Do not ask.")
@_JSON
def apply(config: Path, yes: bool, as_json: bool) -> None:
    """Create the topics that lapse.toml needs.

    Also raises max.message.bytes where it is too low, sets cleanup.policy of lapse's own topics, and gives users the
    rights on topics that they need. Shows the differences first, and asks. A second run changes nothing.

    Writes the definitions of the entities to a topic that all workers follow, unless the file has
    definitions = "file" below [lapse].
    """
    settings = _loaded(config)
    planned = _planned(config, settings)  # first: it waits for running deletions to finish
    if planned is None:
        _await_removals(settings)
    cluster, topology = _look(settings)
    differences = [*topology.differences(), *_beginnings(topology)]
    defined = [] if planned is None else planned.changes
    refused = [] if planned is None else planned.refused
    # Leave out entities that no new topic makes servable, so that the others do not wait for them (C81).
    stuck = [one for one in differences if not one.mended]
    alone = {name for one in stuck for name in one.bars}
    missing = [one.create for one in differences if one.create is not None and one.create.entity not in alone]
    low = [one for one in differences if one.alter]
    shut = [one for one in differences if one.grants]
    if not as_json:
        if not differences and not defined and not refused:
            click.echo("Nothing to do: the cluster fits.")
        elif differences:
            _show(differences)
        if planned is not None:
            planned.show()
    recoveries = [] if planned is None else planned.recoveries
    counts = {"create": len(missing), "change": len(low), "give rights on": len(shut), "write": len(defined)}
    if any(counts.values()) and not yes:
        confirm(_sentence({**counts, "rewind": len(recoveries)}) + "?")
    try:
        cluster.create(missing)
        cluster.alter(low)
        cluster.grant(shut)
        if planned is not None:
            planned.publish()
    except TopologyError as error:
        raise click.ClickException(str(error)) from error
    rewound = {one.queue: one.carry_out(settings) for one in recoveries}
    if as_json:
        created = [topic.name for topic in missing]
        changed = [one.topic for one in low]
        changes = _changes_as_json(created, changed, [one.topic for one in shut], differences, planned)
        click.echo(orjson.dumps({**changes, "rewound": {name: count for name, (count, _) in rewound.items()}}))
    elif any(counts.values()):
        click.echo(_sentence({_DONE[verb]: count for verb, count in counts.items()}) + ".")
    for count, text in rewound.values():
        if not as_json or count is None:
            click.echo(text, err=count is None)
    if refused:
        raise click.ClickException("not defined: " + "\n".join(refused))
    if stuck:
        done = "the others are done" if missing or low or shut else "nothing was changed"
        raise click.ClickException(f"{len(stuck)} of these cannot be mended by lapse; {done}")


@dataclass(frozen=True, slots=True)
class _Defined:
    """How the definitions topic differs from the file (Q23).

    Attributes:
        warnings: where the file differs from the topic, which counts, and what is wrong with `others`.
        others: the entities that are defined but not in the file. Programs and commands create them.
        undefined: the entities of the file that are not defined.
        differing: the entities of which the file says otherwise, with the settings that differ.
    """

    warnings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    differing: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _defined(path: Path, config: Config, topology: Topology) -> _Defined:
    topic = DefinitionsTopic(config)
    try:
        there = topic.read_if_there()
        if there is None:
            return _Defined((no_topic(topic.name),) if config.lapse.definitions == "topic" else ())
        if config.lapse.definitions == "file":
            conflict = f'{topic.name} is there, which is for all workers: a worker with definitions = "file" refuses'
            return _Defined((conflict,))
        decided = decide(path, config, left(there.found, topology.existing))
        hidden = tuple(filter(None, [topic.open_change()]))
        others = decided.definitions.keys() - {*config.queue, *config.sow}
        counting = others | (decided.differing.keys() & decided.definitions.keys())
        if not counting:
            return _Defined((*decided.warnings, *hidden), (), decided.undefined, decided.differing)
        more = Cluster(keep_entities(decided.config, counting)).topology(rights=True)
    except (TopologyError, ValueError) as error:
        return _Defined((str(error),))
    own, known = {topic.name: topic.entity for topic in more.wanted()}, topology.differences()
    wrong: list[str] = []
    for one in more.differences():
        name = own.get(one.topic, one.topic)
        how = "as it is defined" if name in decided.differing else f"is defined, and not in {path.name}"
        if not any((one.topic, one.what) == (other.topic, other.what) for other in known):
            wrong.append(f"{name} {how}: topic {one.topic}: {one.what}")
    found = (*decided.warnings, *hidden, *wrong, *warnings(more))
    return _Defined(found, tuple(sorted(others)), decided.undefined, decided.differing)


def _planned(path: Path, config: Config) -> Plan | None:
    try:
        return plan(path, config)
    except TopologyError as error:
        raise click.ClickException(str(error)) from error


def _await_removals(config: Config) -> None:
    try:
        await_removals({*config.queue, *config.sow}, config)
    except TopologyError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@CONFIG
@_JSON
def check(config: Path, as_json: bool) -> None:
    """Check whether the cluster fits lapse.toml.

    First checks the file and the keys of users, as a worker does at its start. Then compares the file with the
    definitions, and checks entities that the file does not have, or of which it says otherwise, as they are defined.
    Names entities that are being deleted.
    Changes nothing. Exits with 1 if the cluster does not fit the file, but not for warnings alone.
    """
    settings = _loaded(config)
    cluster, topology = _look(settings, rights=True)
    try:
        key.read(settings)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    defined = _defined(config, settings, topology)
    ends = _ends(cluster, {*settings.queue, *settings.sow, *defined.others})
    differences = [*topology.differences(), *_beginnings(topology, defined.differing), *ends]
    advice = list(dict.fromkeys([*warnings(topology), *key.exposure_warnings(settings), *defined.warnings]))
    if as_json:
        facts: dict[str, object] = {"fits": not differences, "differences": [one.facts for one in differences]}
        facts |= {"warnings": advice, "also_defined": defined.others}
        click.echo(orjson.dumps({**facts, "undefined": defined.undefined, "differing": dict(defined.differing)}))
    elif differences:
        _show(differences)
    else:
        click.echo("The configuration is right and the cluster fits it.")
    if defined.others and not as_json:
        named = ", ".join(defined.others[:_MOST_NAMED]) + (" …" if len(defined.others) > _MOST_NAMED else "")
        click.echo(f"Checked as well, for it is defined and not in {config.name}: {named}.")
    for one in advice if not as_json else ():
        click.echo(f"Warning: {one}", err=True)
    sys.exit(1 if differences else 0)
