"""The underlying topics of a queue that were created anew: their old messages leave (C42)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.queue.sweep_horizon import SweepHorizon
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP


class ReplacedTopics:
    """Lets the messages of old topics leave, and keeps their records from being looked for.

    Args:
        shard: the shard.
        payloads: the records behind the messages.
        horizon: knows where younger messages begin in the topics.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow, horizon: SweepHorizon) -> None:
        self._shard = shard
        self._payloads = payloads
        self._horizon = horizon
        self._closed = False

    def begin(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Note which topics were created anew, and since which epoch each source exists."""
        self._payloads.gone = frozenset(replaced)
        for tp, epoch in since.items():
            self._shard.note_topic_epoch(tp.topic, tp.partition, epoch)

    def close(self, topics: Collection[str], epoch: int, now_ms: int, step: Step) -> bool:
        """Let a bounded number of messages leave; return whether none is left."""
        self._horizon.forget(topics)
        self._closed = all(self._shard.replace_topic(name, epoch, now_ms, step) for name in topics)
        return self._closed

    def end_step(self) -> None:
        """Have records looked for again, once none of the old topics is left.

        Not before the end of the step that closed them: its letters must not read them either.
        """
        if self._closed:
            self._payloads.gone = ()
