"""`lapse replicate`: bring SOW topics to another deployment, with their deadlines."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import click

from lapse.config import ConfigError

logger = logging.getLogger(__name__)


@click.command()
@click.option("-c", "--config", type=click.Path(path_type=Path), help="A file like replicate.toml, instead of options.")
@click.option("--from", "upstream", metavar="BROKERS", help="The deployment that is read.")
@click.option("--to", "downstream", metavar="BROKERS", help="The deployment that is written.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[=TOPIC]",
    help="A SOW topic, and its underlying topic downstream if that has another name; may be repeated.",
)
def replicate(config: Path | None, upstream: str | None, downstream: str | None, topics: tuple[str, ...]) -> None:
    """Bring SOW topics to another deployment, with their deadlines.

    Runs until Ctrl-C or SIGTERM, and goes on where it stopped. For both directions, run two.
    """
    from lapse.replication.link import checked, load
    from lapse.replication.replicator import LinkError, Replicator

    given = {"from": upstream, "to": downstream, "topics": dict(map(_topic, topics))}
    stated: dict[str, Any] = {name: value for name, value in given.items() if value}
    try:
        if config is not None and stated:
            raise click.UsageError("give a --config or --from, --to and --topic, not both")
        link = checked(stated, "lapse replicate") if config is None else load(config)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        replicator = Replicator(link, lambda count: logger.info("%d records", count))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: replicator.stop())
        logger.info("replicating %s from %s to %s", ", ".join(link.topics), link.upstream, link.downstream)
        replicator.run()
    except (ConfigError, LinkError) as error:
        raise click.ClickException(str(error)) from error


def _topic(text: str) -> tuple[str, str]:
    name, _, underlying = text.partition("=")
    return name, underlying or name
