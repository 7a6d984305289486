"""Listeners: handle a client's answers and deliveries, mostly in the thread of its channel."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.shard import Shard

TICK_S: Final = 0.05
"""The channel's thread looks for due work at least this often."""

Fields = dict[str, bytes]
"""A record's headers by name; of a repeated name the first, which is the shard's."""

T = TypeVar("T")


class Listener(Generic[T]):
    """The user of a channel. This one gets only answers that a caller waits for.

    Only the channel's thread calls what begins with `on_`. Methods that may change what is read get the
    `ChannelThread`.
    """

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> T:
        """Make a client's object of a record for this client."""
        raise NotImplementedError  # nothing is `ours` in a channel with this listener

    def on_received(self, records: list[T]) -> None:
        """Handle objects that were read, in the order of each shard."""

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """Handle a shard's refusal that no call waits for."""

    def on_taken_over(self, shard: Shard) -> None:
        """Handle a take-over of a shard: earlier commands may never be answered."""

    def on_size(self, entity: str, shards: int) -> None:
        """Handle an entity's number of shards, which may have grown (C81)."""

    def on_deleted(self, thread: ChannelThread, entity: str) -> bool:
        """Handle the deletion of an entity. Returns whether to go on; if not, the channel ends."""
        return False

    def on_tick(self, thread: ChannelThread) -> float:
        """Do what is due. Returns the greatest number of seconds until the next call."""
        return TICK_S

    def is_full(self) -> bool:
        """Whether to stop reading for now."""
        return False

    def failed(self, error: BaseException) -> None:
        """Handle the failure of the session; called once, by any thread."""
