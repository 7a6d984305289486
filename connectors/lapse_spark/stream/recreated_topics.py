"""Finds topics that were deleted and created again since a stream read them, by Kafka's topic ids (C42).

Spark's Kafka source knows a topic by its name only. In the new topic it would go on at the offset of the old one, and
silently leave out the records before. So the ids of the topics are kept beside the tables. The offsets of a recreated
topic are removed from the checkpoint, and Spark then reads the new topic from its beginning.

A batch whose topic is deleted while it is read waits for its records, without a word. So that is said at once. Spark
could not repeat this batch without the topic. So the offsets of the topic are removed, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import orjson

from lapse_spark.connection import Connection
from lapse_spark.stream.output import OFFSETS, Output
from lapse_spark.stream.topic_ids import TopicIds

log = logging.getLogger("lapse_spark")

IDS_FILE: Final = "topics.json"
"""The file with the id of each topic that the stream has read, beside an output's tables."""

_FIRST_OFFSETS: Final = "_checkpoint/sources/0/0"
_LOOKS: Final = 10
_AGAIN_S: Final = 1.0


class RecreatedTopics:
    """Compares the topics of a stream with one source to those that it has read.

    Args:
        output: output of the stream, with its checkpoint.
        connection: connection to the cluster. If it has options that only Java's client knows, nothing is found.
        allowed: whether the stream goes on with a new topic. Otherwise it ends with an error.

    Attributes:
        found: whether a topic was created again while the stream ran.
    """

    def __init__(self, output: Output, connection: Connection, *, allowed: bool) -> None:
        self.found = False
        self._output, self._allowed = output, allowed
        self._ids: dict[str, str] = orjson.loads(output.text(IDS_FILE)) if output.names(".", IDS_FILE) else {}
        self._topic_ids = TopicIds(connection)

    def left_out(self, matches: Callable[[str], bool]) -> list[str]:
        """Return the existing topics that the stream has read, and whose names do not match any more."""
        files = self._offset_files()
        names = {name for file in files for name in self._offsets(file) if not matches(name)}
        return sorted(self._topic_ids.find(names))

    def forget_offsets(self) -> None:
        """Remove the offsets of recreated topics, and of those that an interrupted batch lacks, from the checkpoint.

        Raises:
            ValueError: there is such a topic, and the stream may not go on with it, or without it.
        """
        self.found = False
        files = self._offset_files()
        names = {name for file in files for name in self._offsets(file)}
        self._ids = {name: found for name, found in self._ids.items() if name in names}
        recreated = self._compare(names)
        deleted = self._deleted() if self._output.has_unfinished_batch else frozenset()
        self._judge(recreated, "deleted and created again since it was read", "read from its beginning")
        self._judge(deleted, "deleted while a batch read it", "left out")
        lost = deleted | recreated.keys()
        for file in files if lost else ():
            kept = {name: ends for name, ends in self._offsets(file).items() if name not in lost}
            head, newline, _ = self._output.text(file).rpartition("\n")
            self._output.put_text(file, f"{head}{newline}{orjson.dumps(kept).decode()}")
        self._keep_ids({name: found for name, found in self._ids.items() if name not in deleted} | recreated)

    def _judge(self, lost: Collection[str], what: str, how: str) -> None:
        """Log how the stream goes on with topics whose offsets are removed.

        Raises:
            ValueError: it may not go on.
        """
        text = ", ".join(sorted(lost))
        if lost and not self._allowed:
            raise ValueError(
                f"{what}: {text}. Letters of the old topic that were not read are lost. --allow-gaps goes on, and the "
                f"topic is {how}"
            )
        if lost:
            log.warning("%s, and now %s: %s", what, how, text)

    def _deleted(self) -> frozenset[str]:
        """Return the topics that are missing at each of some looks: brokers that come back do not know all at once."""
        missing = self._topic_ids.absent
        for _ in range(1, _LOOKS):
            if missing:
                time.sleep(_AGAIN_S)
                self._topic_ids.find(missing)
                missing &= self._topic_ids.absent
        return missing

    def look(self, names: Collection[str]) -> None:
        """Look whether topics that the running stream reads were created again; note the ids of new ones.

        Topics that are missing twice in a row are reported, because one broker may not know a topic for a moment.

        Args:
            names: the topics of the stream's last batch; empty if they are not known yet. Then the checkpoint's count.
        """
        files = self._offset_files() if not names else []
        names = names or {name for file in files[:1] for name in self._offsets(file)}
        if not names:
            return
        if not self._ids.keys() <= set(names):  # Spark reads a topic that was missing in a batch as a new one
            latest = self._offsets(self._offset_files()[0])
            self._ids = {name: found for name, found in self._ids.items() if name in latest}
        before = self._topic_ids.absent
        self.found = bool(self._compare(names))
        self._topic_ids.report(before)

    def _compare(self, names: Collection[str]) -> dict[str, str]:
        """Return the new ids of recreated topics. Note the ids of topics that are not known yet."""
        now = self._topic_ids.find(names)
        self._keep_ids(now | self._ids)
        return {name: found for name, found in now.items() if self._ids[name] != found}

    def _keep_ids(self, ids: dict[str, str]) -> None:
        if ids != self._ids:
            self._ids = ids
            self._output.put_text(IDS_FILE, orjson.dumps(ids, option=orjson.OPT_INDENT_2).decode())

    def _offset_files(self) -> list[str]:
        """Return the files with the stream's offsets that count, the latest first.

        The latest one is planned, and perhaps not finished. Then the stream repeats it from the offsets before it.
        """
        numbers = sorted((int(name) for name in self._output.names(OFFSETS, "") if name.isdigit()), reverse=True)
        files = [f"{OFFSETS}/{number}" for number in numbers[:2]]
        return [*files, _FIRST_OFFSETS] if numbers == [0] else files

    def _offsets(self, file: str) -> dict[str, Any]:
        """Return the offsets in a file, by topic."""
        text = self._output.text(file).rpartition("\n")[2]
        return dict(orjson.loads(text)) if text.startswith("{") else {}
