"""The reader of an entity's events (D4)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Final

from lapse.protocol import event as events
from lapse.protocol import topic
from lapse.protocol.codec import CodecError
from lapse.protocol.event import Event
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.topic_reader import PacedReader, TopicReader

_REACHED: Final = re.compile(r"\d{1,18}(?:\.\d{1,18})*", re.ASCII)

logger: Final = logging.getLogger(__name__)


class EventReader(PacedReader[Event]):
    """Reads the events of a queue or SOW topic, without a consumer group. After a crash an event may come twice.

    Args:
        name: name of the entity.
        connection: connection to the cluster; from the environment by default.
        follow: whether to wait for new events; otherwise stop after the events that existed at the beginning.
        since_ms: read only events written at or after this instant, ms since the epoch; None = all.
        newer: whether to read only events that are written after the reader has begun.
        after: what `reached` was: read the events behind it, instead of `since_ms` and `newer`. None and an empty
            text, which is `reached` of a reader that has not begun, leave it to these.

    Raises:
        ValueError: `after` is no text of this form, or `since_ms` is no instant.
        UnknownEntity: there is no such events topic.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | None = None,
        follow: bool = False,
        since_ms: int | None = None,
        newer: bool = False,
        after: str | None = None,
    ) -> None:
        offsets = parse_reached(after)
        cluster, wanted = connection or Connection.from_environment(), topic.events(name)
        topics = cluster.partitions(wanted)
        if wanted not in topics:
            known = (one for one in topics if one.startswith(topic.events("")))
            raise cluster.unknown("events topic", wanted, known, wanted)
        self._reader = TopicReader(
            cluster, wanted, topics[wanted], follow=follow, since_ms=since_ms, newer=newer, after=offsets
        )

    @property
    def reached(self) -> str:
        """How far the reader has come, for `after`: by partition, the next offset; empty before it has begun."""
        return ".".join(str(offset) for _, offset in sorted(self._reader.reached.items()))

    def paced(self) -> Iterator[Event | None]:
        """Iterate over the events, and yield None after each half second without one, so that the caller can stop."""
        for message in self._reader.paced():
            if message is None:
                yield None
                continue
            try:
                yield events.decode(message.value() or b"")
            except CodecError as error:
                place = f"{message.topic()}:{message.partition()}:{message.offset()}"
                logger.warning("%s is left out: it is no event: %s", place, error)


def parse_reached(after: object) -> dict[int, int] | None:
    """Parse what `EventReader.reached` was: by partition, the next offset; None if the reader had not begun.

    Raises:
        ValueError: it was never `reached`.
    """
    if after is None or after == "":
        return None
    if not isinstance(after, str) or _REACHED.fullmatch(after) is None:
        raise ValueError(f"after: expected what `reached` was, such as 17.5.0, not {after!r:.42}")
    return dict(enumerate(int(offset) for offset in after.split(".")))
