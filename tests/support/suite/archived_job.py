"""The job whose classes are in Spark's archive: it does once what most tests of Spark do (see `class_archives`).

It reads and writes topics, Parquet and Delta tables in batches and streams. Its one argument is a broker's address.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory
from typing import Final

from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import EventKind
from lapse.topic_creation import NewTopic
from lapse_spark import session
from lapse_spark.cli import spark as commands
from lapse_spark.session import COMMAND_SETTINGS
from support.kafka import created_topic
from support.kafka.wire import Wire

_QUEUE: Final = "archived"
_UNDER: Final = "archived.orders"


def _write(servers: str) -> None:
    """Write a queue's topics: some messages, their events, and a dead letter."""
    admin = AdminClient({"bootstrap.servers": servers})
    for name in (_UNDER, topic.events(_QUEUE), topic.dead_letters(_QUEUE)):
        created_topic.create(admin, NewTopic(name, 1, 1))
    wire = Wire(servers)
    wire.records(_UNDER, [b"x"] * 5)
    wire.event(_QUEUE, EventKind.ACKNOWLEDGED, BookmarkRange(_UNDER, 0, 0, 2))
    dead = BookmarkRange(_UNDER, 0, 3, 3)
    where = topic.dead_letters(_QUEUE)
    wire.event(_QUEUE, EventKind.DEAD_LETTERED, dead, reasons=("time_limit",), dead_letter_topic=where)
    wire.letter(_QUEUE, Bookmark(_UNDER, 0, 3), Reason.TIME_LIMIT)
    wire.flush()


def main() -> None:
    """Run the commands one after the other, in one session."""
    servers = sys.argv[1]
    _write(servers)
    spark = session(master="local[2]", config={**COMMAND_SETTINGS, "spark.sql.shuffle.partitions": "1"}, delta=True)
    with TemporaryDirectory() as place:
        for words in (
            f"monitor {place}/monitor --pattern dlq.{_QUEUE}",
            f"archive {place}/archive --format delta --pattern dlq.{_QUEUE}",
            f"ledger --queue {_QUEUE} --topics {_UNDER} --no-ask",
            f"redrive {place}/audit --entity {_QUEUE} --pattern dlq.{_QUEUE} --send",
        ):
            done = CliRunner().invoke(commands, [*words.split(), "--bootstrap", servers])
            assert done.exit_code == 0, done.output
    spark.stop()


if __name__ == "__main__":
    main()
