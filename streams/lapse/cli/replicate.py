"""`lapse replicate`: copies SOW topics to another deployment, with their deadlines."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lapse.cli import cluster
from lapse.cli.log_option import LOG_FORMAT
from lapse.config import ConfigError
from lapse.config import load as load_lapse_toml
from lapse.config.fault import first_repeated
from lapse.option_type import not_empty
from lapse.process_end import ended_by_signals
from lapse.runtime.worker_log import Format, JsonFormatter, TextFormatter, begin
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

if TYPE_CHECKING:
    from lapse.replication.link import Link

logger = logging.getLogger(__name__)

_ENDING_S: Final = 20.0
"""How long it may take to end after a signal, s."""


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help="A file like replicate.toml, instead of options; or lapse.toml, for --from.",
)
@click.option(
    "--from",
    "upstream",
    metavar="BROKERS",
    callback=not_empty,
    help="The deployment to read; by default that of lapse.toml.",
)
@click.option("--to", "downstream", metavar="BROKERS", callback=not_empty, help="The deployment to write.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[=TOPIC]",
    help="A SOW topic, and its underlying topic downstream if that has another name; may be repeated.",
)
@LOG_FORMAT
def replicate(
    config: Path | None, upstream: str | None, downstream: str | None, topics: tuple[str, ...], log_format: Format
) -> None:
    """Copy SOW topics to another deployment, with their deadlines.

    Runs until Ctrl-C or SIGTERM, and continues where it stopped. Run two for both directions.
    """
    from lapse.replication.downstream_topics import check_read
    from lapse.replication.link import load
    from lapse.replication.link_error import LinkError
    from lapse.replication.replicator import Replicator
    from lapse.runtime.kafka.security import for_librdkafka

    named = [_topic(one) for one in topics]
    if (repeated := first_repeated(name for name, _ in named)) is not None:
        raise click.UsageError(f"--topic {repeated} is given twice; give it once")
    given = {"from": upstream, "to": downstream, "topics": dict(named)}
    stated: dict[str, Any] = {name: value for name, value in given.items() if value}
    try:
        if config is not None and not cluster.is_lapse_toml(config):
            if stated:
                raise click.UsageError("give a --config or --from, --to and --topic, not both")
            link = load(config)
        else:
            link = load(None, {**_from_lapse_toml(config, upstream), **stated})
        for servers, of_side in ((link.upstream, link.from_security), (link.downstream, link.to_security)):
            connection = Connection(servers, for_librdkafka(of_side))
            connection.await_broker(cluster.PATIENCE_S)
        check_read(link, connection)
        begin(TextFormatter("%(asctime)s %(levelname)s %(message)s") if log_format == "text" else JsonFormatter())
        replicator = Replicator(link, lambda count: logger.info("%d records", count), lambda: _log_link(link))
        left = "The next one continues where it stopped"
        with ended_by_signals(_ENDING_S, logger, "the replication", left, replicator.stop):
            replicator.run()
    except (ConfigError, LinkError, LapseError) as error:
        raise click.ClickException(str(error)) from error


def _log_link(link: Link) -> None:
    logger.info("replicating %s from %s to %s", ", ".join(link.topics), link.upstream, link.downstream)


def _from_lapse_toml(path: Path | None, upstream: str | None) -> dict[str, Any]:
    """Return the source deployment from `lapse.toml` or the environment; nothing if --from is given without a file."""
    if path is None:
        if upstream is not None:
            return {}
        path = Path("lapse.toml")
        if not path.exists():
            servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
            return {"from": servers} if servers else {}
    found = load_lapse_toml(path)
    return {"from": found.lapse.brokers, "from_security": found.security}


def _topic(text: str) -> tuple[str, str]:
    name, stated, underlying = text.partition("=")
    return name, underlying if stated else name
