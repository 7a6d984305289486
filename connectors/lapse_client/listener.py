"""Listeners: handle a client's answers and deliveries, mostly in the thread of its channel."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse_client.channel_thread import ChannelThread
from lapse_client.shard import Shard

TICK_S: Final = 0.05
"""The channel's thread looks for due work at least this often."""

Fields = dict[str, bytes]
"""A record's headers by name; of a repeated name the first, which is the shard's."""

T = TypeVar("T")


class Listener(Generic[T]):
    """What a channel works for. This one expects nothing but answers that somebody waits for.

    Only the channel's thread calls what begins with `on_`. Methods that may change what is read get the
    `ChannelThread`.
    """

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> T:
        """Make of a record that concerns this client what it works with."""
        raise NotImplementedError  # nothing is `ours` in a channel with this listener

    def on_received(self, records: list[T]) -> None:
        """What was read came in, in the order of each shard."""

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """A shard refused something that nobody waits for."""

    def on_taken_over(self, shard: Shard) -> None:
        """Another worker has the shard now: what was asked before may never be answered."""

    def on_size(self, entity: str, shards: int) -> None:
        """An entity has so many shards; more than before, perhaps (C81)."""

    def on_deleted(self, thread: ChannelThread, entity: str) -> bool:
        """An entity was deleted. Returns whether there is a point in going on; if not, the channel ends."""
        return False

    def on_tick(self, thread: ChannelThread) -> float:
        """Do what is due, and return after how many seconds at most to be called again."""
        return TICK_S

    def is_full(self) -> bool:
        """Whether to read no more for now."""
        return False

    def failed(self, error: BaseException) -> None:
        """The session cannot go on; called once, by any thread."""
