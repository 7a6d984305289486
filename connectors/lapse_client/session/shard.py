"""A shard as a client sees it: where its commands go, and its current epoch."""

from __future__ import annotations


class Shard:
    """One partition of one entity.

    Attributes:
        index: its number among the shards of a channel.
        entity: name of the queue or SOW topic.
        partition: its partition of the commands and deliveries topics.
        epoch: the highest epoch seen. Later records of lower epochs are void.
        epoch_text: the same epoch as header bytes, so that records can be compared without parsing.
        gone: whether its entity was deleted, and the client goes on without it.
        sent_at_ms: when the last command was sent to the shard, by `clock.elapsed_ms`.
    """

    __slots__ = ("entity", "epoch", "epoch_text", "gone", "index", "partition", "sent_at_ms")

    def __init__(self, index: int, entity: str, partition: int) -> None:
        self.index = index
        self.entity = entity
        self.partition = partition
        self.epoch = -1
        self.epoch_text: bytes | None = None
        self.gone = False
        self.sent_at_ms = 0.0

    def __repr__(self) -> str:
        return f"<shard {self.partition} of {self.entity}>"

    def enters(self, epoch: bytes | None) -> bool:
        """Return whether a record with this epoch counts. Remember a new epoch."""
        if epoch is None:
            return True
        try:
            number = int(epoch)
        except ValueError:
            return False
        if number < self.epoch:
            return False
        self.epoch = number
        self.epoch_text = epoch
        return True
