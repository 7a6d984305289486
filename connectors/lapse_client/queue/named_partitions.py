"""The partitions that bookmarks name: a bookmark of a partition that its topic does not have is refused (X7)."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.protocol.bookmark import BookmarkRange
from lapse_client.kafka.connection import Connection


class NamedPartitions:
    """Looks topics up once, and again only if a bookmark names a partition that they did not have then.

    Args:
        connection: connection to the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._counts: dict[str, int] = {}
        """Number of partitions by topic; 0 if there is no such topic, or the brokers hide it."""

    def check(self, bookmarks: Iterable[BookmarkRange]) -> None:
        """Check the partitions of bookmarks. Shards answer about topics that are not there, or not for this user.

        Raises:
            ValueError: a topic has no such partition; the text names those that it has.
            ConnectionFailed: no broker answered.
        """
        highest = {one.topic: one for one in sorted(bookmarks, key=lambda one: one.partition)}
        if all(self._allows(one) for one in highest.values()):
            return
        topics = self._connection.partitions()
        self._counts.update({name: topics.get(name, 0) for name in highest})
        for one in highest.values():
            if not self._allows(one):
                count = self._counts[one.topic]
                has = "partition 0 only" if count == 1 else f"partitions 0 to {count - 1}"
                raise ValueError(f"{one}: topic {one.topic} has {has}; correct the bookmark")

    def _allows(self, one: BookmarkRange) -> bool:
        count = self._counts.get(one.topic)
        return count is not None and (not count or one.partition < count)
