"""The common parts of the pipeline's commands: cluster, Spark's master, instants, and errors in one line."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec

import click
import orjson
from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from lapse.option_type import not_empty
from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka import time_check
from lapse_client.kafka.connection import entities, is_for_people
from lapse_client.letters import letter_topic
from lapse_client.reading.definitions import Definitions
from lapse_spark import fault, lapse_toml
from lapse_spark.collected import in_utc
from lapse_spark.connection import Connection
from lapse_spark.option_type import INTERVAL, MASTER
from lapse_spark.quarantine import Quarantined
from lapse_spark.read import DEAD_LETTER_PATTERN
from lapse_spark.session import COMMAND_SETTINGS, session
from lapse_spark.stream.stream import Standing, StreamLost
from lapse_spark.stream.topic_ids import named_if_deleted

P = ParamSpec("P")


_NO_PATTERN: Final = ("missing )", "nothing to repeat", "unbalanced parenthesis", "unterminated character set")
"""The beginnings of Python's messages for what is no regular expression anywhere."""

_PATIENCE_S: Final = 2.5
"""How long a command waits for the first answer of a broker, in seconds."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster and the Spark settings of a command, from its options.

    Attributes:
        connection: connection to the Kafka cluster.
        master: Spark's master; None = as configured, else this machine.
        config: further Spark settings.
        file: path of the `lapse.toml` in the options; None = none.
    """

    connection: Connection
    master: str | None
    config: Mapping[str, str]
    file: Path | None = None

    def session(self, name: str, *, delta: bool = False, of_files: bool = False) -> SparkSession:
        """Return the Spark session for a job.

        Args:
            name: name of the job.
            delta: whether it must know Delta Lake.
            of_files: whether the job only reads files, so that no broker is needed.

        Raises:
            ConnectionFailed: no broker answered.
        """
        if not of_files:
            self.await_broker()
        return session(f"lapse {name}", master=self.master, config=COMMAND_SETTINGS | {**self.config}, delta=delta)

    def await_broker(self) -> None:
        """Wait until a broker answers, because Spark would retry for minutes, and log each attempt.

        Raises:
            ConnectionFailed: no broker answered within some seconds.
        """
        try:
            ours = self.connection.of_lapse()
        except ValueError:  # options that only Java's client has: only Spark can check
            return
        ours.await_broker(_PATIENCE_S)

    def await_topics(self, names: Sequence[str], entity: str = "", use: Literal["Read", "Write"] = "Read") -> None:
        """Check that topics exist and may be used before Spark starts, because it takes seconds and does not name them.

        Args:
            names: names of the topics.
            entity: a queue or SOW topic whose events are read, too; empty = none.
            use: what is done with the topics.

        Raises:
            ConnectionFailed: no broker answered within some seconds.
            UnknownEntity: there is no such entity or topic.
            LapseError: the brokers do not let this user read a topic, or write to it.
        """
        try:
            ours = self.connection.of_lapse()
        except ValueError:  # options that only Java's client has: only Spark can check
            return
        ours.await_broker(_PATIENCE_S)
        topics = ours.partitions(*([topic.events(entity)] if entity else names))
        if entity and topic.events(entity) not in topics:
            known = {*entities(topics, sow=False), *entities(topics, sow=True)}
            if entity in known and not ours.unseen([topic.events(entity)]):
                raise LapseError(f"{entity}: its topic {topic.events(entity)} is missing. `lapse apply` creates it")
            raise ours.unknown("queue or SOW topic", entity, known, topic.events(entity))
        for name in names:
            if name not in topics:
                raise ours.unknown("topic", name, filter(is_for_people, topics), name)
        ours.check_allowed([*([topic.events(entity)] if entity else ()), *names], use)

    def check_allowed(self, names: Sequence[str], use: Literal["Read", "Write"]) -> None:
        """Check that this user may use those of some topics that exist, before Spark starts.

        Raises:
            LapseError: the brokers do not let this user read a topic, or write to it.
        """
        try:
            ours = self.connection.of_lapse()
        except ValueError:  # options that only Java's client has: only Spark can check
            return
        topics = ours.partitions()
        ours.check_allowed([name for name in names if name in topics], use)

    def await_letters(self, pattern: str, names: Sequence[str] = (), *, later: bool = False) -> str:
        """Check that there are dead-letter topics before Spark starts, because Spark accepts that there are none.

        Args:
            pattern: Java regular expression of the topics; empty = all default ones, and those that definitions name
                (D1). It is no error if no default one exists, unless the brokers hide them from this user.
            names: entities whose letters are read. A deleted entity still has its topic.
            later: whether topics that are created later are read, too. Then a missing topic is only a warning.

        Returns:
            A Java regular expression of the topics to read.

        Raises:
            ConnectionFailed: no broker answered within some seconds.
            LapseError: the brokers hide the topics from this user, or do not let it read one, or there is no such
                entity.
            ValueError: no topic matches.
        """
        try:
            ours = self.connection.of_lapse()
            matches = re.compile(pattern or DEAD_LETTER_PATTERN).fullmatch
        except re.error as error:
            if "\\Q" not in pattern and error.msg.startswith(_NO_PATTERN):  # nor is it one for Java
                raise ValueError(f"--pattern {pattern!r}: {error}. Correct it") from error
            return pattern
        except ValueError:  # options that only Java's client has: only Spark can check
            return pattern or DEAD_LETTER_PATTERN
        ours.await_broker(_PATIENCE_S)
        topics = ours.partitions()
        letters = sorted(name for name in topics if name.startswith(topic.DEAD_LETTER_PREFIX))
        if not letters and (blind := ours.blind("dead-letter topics", topic.DEAD_LETTER_PREFIX)):
            raise blind
        known = {*entities(topics, sow=False), *entities(topics, sow=True)}
        for name in names if not pattern else ():
            if name not in known and topic.dead_letters(name) not in topics:
                raise ours.unknown("queue or SOW topic", name, known, topic.dead_letters(name))
        if not pattern:
            own = sorted(set(letter_topic.all_named(Definitions(ours, topics)).values()))
            ours.check_allowed([name for name in topics if matches(name) or name in own], "Read")
            return "|".join([DEAD_LETTER_PATTERN, *(re.escape(name) for name in own if not matches(name))])
        if read := [*filter(matches, topics)]:
            ours.check_allowed(read, "Read")
            return pattern
        message = f"no topic matches --pattern {pattern!r}; dead-letter topics: {', '.join(letters) or 'none'}"
        if not later:
            raise ValueError(f"{message}. Correct it, or leave it out for all of {topic.DEAD_LETTER_PREFIX}*")
        click.echo(f"Warning: {message}. Those that come later are read", err=True)
        return pattern

    def reading(self, names: Sequence[str] = (), *, pattern: str = "") -> AbstractContextManager[None]:
        """Return a context that names topics on standard error if they are deleted while it reads them.

        Args:
            names: the topics that are read.
            pattern: Java regular expression of further ones.
        """
        return named_if_deleted(self.connection, names, pattern=pattern)

    def now_ms(self, entity: str = "") -> int:
        """Return the broker's time, ms since the epoch (C3); if it is unknown, this machine's, with a warning.

        Args:
            entity: an entity whose commands topic may be written to; empty = any.
        """
        return time_check.now_ms(
            self.connection.of_lapse(), entity, lambda why: click.echo(f"Warning: {why}", err=True)
        )


def cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a cluster and Spark to a command, which gets them as `cluster`, and `--json` as `as_json`."""

    @click.option(
        "-b",
        "--bootstrap-servers",
        "--bootstrap",
        "bootstrap",
        envvar="KAFKA_BOOTSTRAP_SERVERS",
        default="",
        callback=not_empty,
        metavar="HOST:PORT,…",
        help="The brokers, instead of those of lapse.toml. [env: KAFKA_BOOTSTRAP_SERVERS]",
    )
    @click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file with the connection.  [default: lapse.toml, if there is one]",
    )
    @click.option(
        "--kafka-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Java properties file with client options (security.protocol, …), instead of lapse.toml.",
    )
    @click.option(
        "--master",
        type=MASTER,
        metavar="URL",
        help="Spark's master; by default the configured one, or else all cores of this machine.",
    )
    @click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
    @functools.wraps(command)
    def with_cluster(
        *args: Any,
        bootstrap: str,
        config: Path | None,
        kafka_config: Path | None,
        master: str | None,
        conf: tuple[str, ...],
        **options: Any,
    ) -> None:
        if config is not None and kafka_config is not None:
            raise click.UsageError("give --config or --kafka-config, not both")
        with plain_faults():
            settings = dict(_setting(text) for text in conf)
            connection = _connection(bootstrap, config, kafka_config)
            command(*args, cluster=Cluster(connection, master, settings, config), **options)

    return with_cluster


def _connection(bootstrap: str, config: Path | None, kafka_config: Path | None) -> Connection:
    """Return the connection from the properties file, or else from `lapse.toml`, if there is one."""
    if kafka_config is not None:
        return Connection.from_file(bootstrap, kafka_config)
    if config is None and not lapse_toml.DEFAULT.exists():
        return Connection(bootstrap)
    return Connection.from_lapse_toml(bootstrap, config or lapse_toml.DEFAULT)


PATTERN_HELP: Final = (
    "Java regular expression of the dead-letter topics. [default: dlq.*, and those that definitions name]"
)


def stream_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of streaming jobs to a command."""

    @click.option("--pattern", default="", help=PATTERN_HELP)
    @click.option(
        "--every",
        type=INTERVAL,
        metavar="INTERVAL",
        help="Keep running, and begin a batch at this interval, such as 30s; 0s = at once after the one before.",
    )
    @click.option("--max-records", type=click.IntRange(min=1), help="The greatest number of records in a batch.")
    @click.option("--strict", is_flag=True, help="End with an error at the first record that is no dead letter.")
    @functools.wraps(command)
    def with_options(*args: Any, **options: Any) -> None:
        command(*args, **options)

    return with_options


def kept_as(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for the format of an archive to a command, which gets it as `kind`."""
    return click.option(
        "--format",
        "kind",
        type=click.Choice(["parquet", "delta"]),
        help="How the archive is kept. [default: as it is; Parquet where nothing is yet]",
    )(command)


def event_schemas(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for event schemas of other versions to a command, which gets them as `written_with`."""
    return click.option(
        "--event-schema",
        "written_with",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="The event.avsc of another version of lapse whose workers have written events; may be repeated.",
    )(command)


_SPARK_IS_GONE: Final = (
    "Spark's JVM has ended, for lack of memory, or by a signal to the whole process group. What was finished stays; "
    "run the command again to go on"
)


@contextmanager
def plain_faults() -> Iterator[None]:
    """Show errors that a user can correct in one line, without a traceback."""
    from lapse.embedded.errors import EmbeddedError

    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log every error at length, beside raising it
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise click.ClickException(_SPARK_IS_GONE) from error
    except (ValueError, OSError, EmbeddedError, Quarantined, LapseError, KafkaException, StreamLost) as error:
        raise click.ClickException(str(error)) from error
    except PySparkException as error:
        text = (error.getMessage() or str(error)).strip()
        raise click.ClickException(fault.sentence("\n".join(text.splitlines()[:2]), text)) from error
    except Py4JJavaError as error:
        raise click.ClickException(fault.sentence(_innermost(error.java_exception), str(error))) from error


@contextmanager
def working(what: str) -> Iterator[Callable[[Standing], None]]:
    """Show progress: live on a terminal, else by a line whenever a stream has read records.

    Yields a function that a stream calls with its progress.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        reported = 0

        def report(standing: Standing) -> None:
            nonlocal reported
            if standing.records > reported:
                reported = standing.records
                click.echo(f"{standing.at} {what}: {reported:,} records, {standing.lag:,} behind", err=True)

        yield report
        return
    with console.status(what) as status:
        yield lambda standing: status.update(
            f"{what}: {standing.records:,} records, {standing.lag:,} behind (batch {standing.batch})"
        )


def print_json(data: object) -> None:
    """Print data as JSON, instants in RFC 3339."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATETIME
    click.echo(orjson.dumps(data, option=options, default=_json_fallback).decode())


def _json_fallback(value: object) -> str:
    """Convert a value that JSON does not know."""
    if isinstance(value, datetime):
        return in_utc(value).isoformat().replace("+00:00", "Z")
    return str(value)


def _innermost(error: Any) -> str:
    """Return the class and text of the innermost cause, which is that of Kafka's client."""
    while error.getCause() is not None:
        error = error.getCause()
    text = str(error.getMessage()).partition("\n")[0]
    return f"{error.getClass().getSimpleName()}: {text}"


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--conf {text!r}: expected NAME=VALUE")
    return name, value
