"""`create` and `alter` of `lapse queue` and `lapse sow`, for entities of a running deployment (Q23)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lapse.cli.config_option import CONFIG
from lapse.cli.definition import latest_ms, live, opened
from lapse.config import Config, ConfigError, load
from lapse.config.definition import WORD, Kind
from lapse.config.document import parse_toml
from lapse.runtime.topics.definition_draft import Draft, Refused, Request, create_and_grant, draft, patched, remove_lost
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange
from lapse.runtime.topics.deleted_entities import settled
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.topology import TopologyError

_TRIES: Final = 5
_AGAIN_S: Final = 0.1

EXAMPLES: Final[Mapping[Kind, tuple[str, str]]] = {
    "queue": ("""lease_period=30s 'topics=["a", "b"]'""", "max_deliveries=5 retry.delay=10s"),
    "sow": ("""expiration=1h 'key=["/symbol", "/venue"]'""", "expiration=45s hash_index=/trader"),
}
"""Examples of settings for each kind: to create an entity, and to change it."""

_BY_FILE: Final = (
    'in this deployment the file decides what the entities are (definitions = "file"). Edit it and run `lapse apply`; '
    "or take that line out of [lapse] of every worker's file, run `lapse apply`, and start the workers again"
)


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        CONFIG,
        click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
        click.argument("name"),
    ):
        command = option(command)
    return command


def _create(kind: Kind) -> click.Command:
    word = WORD[kind]

    def create(name: str, settings: tuple[str, ...], config: Path, dry_run: bool, as_json: bool) -> None:
        request = Request(name, kind, read_settings(settings), f"lapse {kind} create", new=True)
        _carry_out(request, config, dry_run, as_json)

    create.__doc__ = f"""Create the {word} NAME in a running deployment.

    KEY=VALUE are settings as in lapse.toml, where TOML's quotes may be left out: {EXAMPLES[kind][0]}.
    Creates missing topics. Running workers serve it within seconds. Not with definitions = "file".
    """
    return click.command("create")(_shared(create))


def _alter(kind: Kind) -> click.Command:
    word = WORD[kind]

    def alter(
        name: str,
        settings: tuple[str, ...],
        config: Path,
        dry_run: bool,
        as_json: bool,
        removed: tuple[str, ...],
        version: int | None,
    ) -> None:
        changed = read_settings(settings)
        for key in removed:
            unset(changed, key)
        if not changed:
            raise click.UsageError("name what changes: KEY=VALUE, or --unset KEY")
        _carry_out(Request(name, kind, changed, f"lapse {kind} alter", False, version), config, dry_run, as_json)

    alter.__doc__ = f"""Change settings of the {word} NAME; what is not named stays.

    KEY=VALUE are settings as in lapse.toml, where TOML's quotes may be left out: {EXAMPLES[kind][1]}.
    Changes that live messages forbid are refused; the error says what to do.
    """
    command = click.option(
        "--unset", "removed", multiple=True, metavar="KEY", help="Restore the default of this setting; may be repeated."
    )(alter)
    based = click.option("--version", type=click.IntRange(1), help="Refuse if the definition has another version.")
    return click.command("alter")(_shared(based(command)))


create_queue, alter_queue = _create("queue"), _alter("queue")
create_sow, alter_sow = _create("sow"), _alter("sow")


def read_settings(given: tuple[str, ...]) -> dict[str, Any]:
    """Parse settings from the command line: TOML, in which the quotes of a text may be left out.

    Raises:
        click.UsageError: a setting has no `=`, its key is not valid, or it is given twice.
    """
    found: dict[str, Any] = {}
    paths: set[tuple[str, ...]] = set()
    for one in given:
        key, equals, value = one.partition("=")
        read = _toml(key, value) if equals else None
        if read is None:
            raise click.UsageError(f"{one!r} is no setting: expected KEY=VALUE, such as expiration=30s")
        path = _path(key)
        if path in paths:
            raise click.UsageError(f"{key.strip()} is set twice; set it once")
        paths.add(path)
        found = patched(found, read)
    return found


def unset(changed: dict[str, Any], key: str) -> None:
    """Have a setting removed, or one of a table, such as `retry.factor`.

    Raises:
        click.UsageError: it is no valid key, or is set by the same command.
    """
    path = _path(key)
    if not path:
        raise click.UsageError(f"--unset {key!r}: no name of a setting")
    table = changed
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if inner is None:
            return  # the whole table is removed
        if not isinstance(inner, dict):
            raise _set_as_well(key)
        table = inner
    if _sets(table.get(path[-1])):
        raise _set_as_well(key)
    table[path[-1]] = None


def _set_as_well(key: str) -> click.UsageError:
    return click.UsageError(f"--unset {key}: the same command sets it; leave one of them out")


def _sets(value: object) -> bool:
    """Return whether a value, or one in a table, is to be set; None is to be removed."""
    return any(map(_sets, value.values())) if isinstance(value, Mapping) and value else value is not None


def _path(key: str) -> tuple[str, ...]:
    """Return the names of which a key consists; empty if it is not valid."""
    found: list[str] = []
    level: object = _toml(key, "0")
    while isinstance(level, Mapping):
        ((name, level),) = level.items()
        found.append(name)
    return tuple(found)


def _toml(key: str, value: str) -> Mapping[str, Any] | None:
    """Return a table with one key; None if the key is not valid."""
    if "\n" in key or "#" in key:
        return None
    try:
        quoted = orjson.dumps(value).decode()
    except TypeError:  # not UTF-8
        return None
    for text in (value, quoted):
        if "\n" in text:
            continue
        try:
            return parse_toml(f"{key} = {text}", key)
        except ConfigError:
            continue
    return None


def _carry_out(asked: Request, path: Path, dry_run: bool, as_json: bool) -> None:
    try:
        config = load(path)
        if config.lapse.definitions == "file":
            raise click.ClickException(f"{path}: {_BY_FILE}")
        topic = opened(config)
        made, differences = _define(asked, topic, config, path.absolute().parent, dry_run)
    except (ConfigError, OutdatedChange, Refused, TopologyError) as error:
        raise click.ClickException(str(error)) from error
    _show(config, made, differences, dry_run, as_json)


def _define(
    asked: Request, topic: DefinitionsTopic, config: Config, beside: Path, dry_run: bool
) -> tuple[Draft, list[Difference]]:
    """Define an entity; return its draft, and the topics that were missing or different.

    Raises:
        OutdatedChange: concurrent changes of definitions made all tries fail.
    """
    created: set[str] = set()
    try:
        for _ in range(_TRIES - 1):
            try:
                return _try_define(asked, topic, config, beside, dry_run, created)
            except OutdatedChange:
                time.sleep(_AGAIN_S * random.uniform(1, 5))  # noqa: S311  # so that two commands do not collide again
        return _try_define(asked, topic, config, beside, dry_run, created)
    except Refused:
        if created:
            remove_lost(asked, created, topic.read_to_change(), config)
        raise


def _try_define(
    asked: Request, topic: DefinitionsTopic, config: Config, beside: Path, dry_run: bool, created: set[str]
) -> tuple[Draft, list[Difference]]:
    """Try it once. Add new topics to `created`, so that the next try knows that they belong to the entity."""
    there, deleted = settled(topic.read_to_change, config, {asked.name})
    made = draft(asked, there, config, beside, latest_ms(config), deleted, topic.unreadable, topic.versions)
    made.check_state(lambda differs: live(differs, config))
    name = asked.name
    cluster, differences, _ = made.differences()
    if made.differs is None and any(one.create is not None and name in one.bars for one in differences):
        made = made.as_new_entity(asked)
    made = made.with_topics(differences, created)
    created.update(made.after.made)
    if not dry_run:
        created.update(one.create.name for one in differences if one.create is not None)
        create_and_grant(cluster, differences)
        if made.differs is not None:
            topic.publish([made.after], beside)
    return made, differences


def _show(config: Config, made: Draft, differences: list[Difference], dry_run: bool, as_json: bool) -> None:
    after, differs = made.after, made.differs
    created = [one.topic for one in differences if one.create is not None]
    keys = [] if differs is None else list(differs.keys)
    if as_json:
        facts = {"entity": after.name, "kind": after.kind, "version": after.version, "changed": differs is not None}
        facts |= {"keys": keys, "created": created, "differences": [one.facts for one in differences]}
        click.echo(orjson.dumps({**facts, "dry_run": dry_run}))
        return
    for one in differences:
        by = f"{'would be ' if dry_run else ''}mended by {one.mended}" if one.mended else "to be mended by you"
        click.echo(f"topic {one.topic}: {one.what}; {by}")
    word, what = WORD[after.kind], ", ".join(keys) or "new"
    if differs is None:
        click.echo(f"Nothing to define: {word} {after.name} has these settings since version {after.version}.")
        return
    verb = "would be" if dry_run else "is"
    click.echo(f"{word} {after.name}: version {after.version} {verb} defined ({what}).")
    if not dry_run:
        click.echo(f"Running workers of {config.lapse.app_id} take it up within seconds; their logs say so.")
