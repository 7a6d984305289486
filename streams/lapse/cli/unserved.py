"""Deletes an entity of a deployment that no worker can serve, so that none can be asked for it (C4, C52)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from lapse.cli import cluster
from lapse.cli.confirmation import confirm
from lapse_client.error import CommandFailed, ConnectionFailed, EntityDeleted, LapseError

if TYPE_CHECKING:
    from lapse.config import Config
    from lapse.config.definition import Kind


def delete_unserved(kind: Kind, name: str, force: bool, yes: bool, refused: click.ClickException) -> None:
    """Delete an entity that is defined and cannot be served, with all that is in it.

    Args:
        kind: kind of the entity.
        name: its name.
        force: whether to delete it although nobody can say what is in it.
        yes: whether to do so without a question.
        refused: why it could not be deleted by a worker. It is raised again for any other entity.

    Raises:
        click.ClickException: it was not deleted.
    """
    why = refused.__cause__
    if not isinstance(why, LapseError) or isinstance(why, CommandFailed | ConnectionFailed | EntityDeleted):
        raise refused
    try:
        config = cluster.configuration()
    except LapseError:
        raise refused from why
    if config is None or config.lapse.definitions == "file" or not _delete(kind, name, force, yes, config):
        raise refused


def deletion_figures(counts: Mapping[str, int], states: Iterable[str]) -> dict[str, int | None]:
    """Return, for JSON, how many messages or records left with a deleted entity: null if nobody could count them.

    Args:
        counts: what the shards counted; empty if they could not.
        states: the states that are shown.
    """
    return {state: counts.get(state, 0) if counts else None for state in states}


def _delete(kind: Kind, name: str, force: bool, yes: bool, config: Config) -> bool:
    """Delete the entity; return False if it is not defined, or can be served."""
    # Only who has the configuration of a deployment needs the packages of a worker.
    from lapse.cli.definition import opened
    from lapse.runtime.topics.cluster import Cluster
    from lapse.runtime.topics.definitions import OutdatedChange
    from lapse.runtime.topics.topology import TopologyError

    try:
        topic = opened(config)
        contents = topic.read_if_there()
        why = "" if contents is None else _why_not_served(kind, name, contents.found.get(name), config)
        if contents is None or not why:
            return False
        if not force:
            raise click.ClickException(
                f"{name} cannot be served: {why}. Mend that (`lapse apply` creates what is missing), or delete it with "
                "--force: what is in it then leaves without events and dead letters"
            )
        if not yes:
            confirm(f"Delete {name}, which cannot be served ({why}), with all that is in it?")
        Cluster(config).remove_entity(name)
        topic.withdraw({name: contents.offsets[name]})
    except (OutdatedChange, TopologyError) as error:
        raise click.ClickException(f"{name}: {error}") from error
    return True


def _why_not_served(kind: Kind, name: str, value: bytes | None, config: Config) -> str:
    """Return why an entity cannot be served; empty if it can be, is of the other kind, or is not defined."""
    from lapse.config.definition import Definition, keep_entities, with_entities, with_only_defined
    from lapse.runtime.topics.cluster import Cluster

    beside = cluster.configuration_path().absolute().parent
    if value is None:
        return ""
    try:
        one = Definition.decode(name, value)
    except ValueError as error:
        return str(error)
    if one.kind != kind:
        return ""
    whole, _, faults = with_entities(with_only_defined(config, (), beside), [one], beside)
    if name in faults:
        return faults[name]
    return "; ".join(Cluster(keep_entities(whole, {name})).topology().barred().get(name, ()))
