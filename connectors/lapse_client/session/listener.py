"""Listeners: handle a client's answers and deliveries, mostly in the thread of its channel."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.shard import Shard

TICK_S: Final = 0.05
"""The channel's thread looks for due work at least this often, in seconds."""

Fields = dict[str, bytes]
"""A record's headers by name. Of a repeated name it has the first value, which is the shard's."""

T = TypeVar("T")


class Listener(Generic[T]):
    """Receives what a channel reads. This base class ignores all but the answers that a caller waits for.

    Only the channel's thread calls the methods whose names begin with `on_`. Those that may add or remove shards
    get the `ChannelThread`.
    """

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> T:
        """Convert a record for this client into an object of the client."""
        raise NotImplementedError  # nothing is `ours` in a channel with this listener

    def on_received(self, records: list[T]) -> None:
        """Handle converted records, in the order of each shard."""

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """Handle a shard's refusal that no call waits for."""

    def on_taken_over(self, shard: Shard) -> None:
        """Handle a take-over of a shard, after which earlier commands may stay unanswered."""

    def on_size(self, entity: str, shards: int) -> None:
        """Handle an entity's number of shards, which may have grown (C81)."""

    def awaits_others(self, shard: Shard) -> bool:
        """Return whether other shards of a deleted entity may send more, after one shard has reported the deletion."""
        return False

    def on_deleted(self, thread: ChannelThread, entity: str) -> bool:
        """Handle the deletion of an entity. Returns whether to go on; if not, the channel ends."""
        return False

    def on_tick(self, thread: ChannelThread) -> float:
        """Do what is due. Return the longest wait until the next call, in seconds."""
        return TICK_S

    def is_full(self) -> bool:
        """Return whether the channel should stop reading for now."""
        return False

    def failed(self, error: BaseException) -> None:
        """Handle the failure of the session; called once, by any thread."""
