"""`lapse queue partitions`: adds shards to a queue for new partitions of its topics (C81)."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from lapse.cli.config_option import CONFIG
from lapse.cli.definition import opened
from lapse.config import Config, ConfigError, load
from lapse.config.definition import keep_entities, with_only_defined
from lapse.core.near_name import nearest
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import understood
from lapse.runtime.topics.enlargement import enlargement
from lapse.runtime.topics.topology import TopologyError
from lapse_client.reading.count_text import count_text


@click.command()
@click.argument("name")
@CONFIG
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def partitions(name: str, config: Path, dry_run: bool, as_json: bool) -> None:
    """Give the queue NAME shards for partitions that its topics have gained.

    First add the partitions with Kafka's own tools, up to a multiple of the old number. Then wait until all producers
    know them: five minutes, unless their metadata.max.age.ms differs. Running workers open each new shard as soon as
    the messages of the older shards are settled. The command may be repeated.
    """
    try:
        settings = _deployment(config)
        check(name, settings)
        target = settings.queue[name].forward_to
        cluster = Cluster(keep_entities(settings, {name} if target is None else {name, target}))
        found = enlargement(cluster.topology(), name)
        if not dry_run:
            for topics in found.rounds:
                cluster.enlarge(topics, found.partitions)
    except (ConfigError, TopologyError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        facts = {"entity": name, "shards": found.partitions, "before": found.shards, "topics": list(found.topics)}
        click.echo(orjson.dumps({**facts, "changed": bool(found.topics), "dry_run": dry_run}))
    elif not found.topics:
        shards = count_text(found.shards, "shard")
        click.echo(f"Nothing to do: queue {name} has {shards}, as many as its topics have partitions.")
    else:
        verb = "would get" if dry_run else "get"
        named = ", ".join(found.topics)
        click.echo(f"queue {name}: {named} {verb} {found.partitions} partitions; {found.shards} before.")
        if not dry_run:
            click.echo(
                "Running workers take that up within seconds. A new shard reads nothing before the older ones have "
                "settled what they had; the workers' logs say so."
            )


def _deployment(path: Path) -> Config:
    """Return the configuration that is served: from the definitions topic, or from the file."""
    config = load(path)
    if config.lapse.definitions == "file":
        return config
    there = opened(config).read_if_there()
    if there is None:
        return config
    return with_only_defined(config, understood(there.found).values(), path.absolute().parent)


def check(name: str, config: Config) -> None:
    """Check that a queue exists.

    Raises:
        TopologyError: there is no such queue; the text names those that exist.
    """
    if name in config.sow:
        raise TopologyError(
            f"{name} is a SOW topic: its shards read added partitions by themselves, as far as they are a multiple of "
            "the shards. For more shards, make a topic with more partitions, and a SOW topic over it; copy the records "
            "there, and let its users change over"
        )
    if name not in config.queue:
        close = nearest(name, config.queue)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(sorted(config.queue)) or 'none'}."
        raise TopologyError(f"there is no queue {name}; {hint} Correct the name, or define it by `lapse apply`")
