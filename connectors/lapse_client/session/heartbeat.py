"""Heartbeats: keep a subscription alive while no other commands are sent (C5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lapse.protocol.answer import Answer
from lapse_client.session.listener import TICK_S
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard


class Heartbeat:
    """The heartbeats of one subscription; for the channel's thread.

    Args:
        session: session of the subscription.
        asked_ms: the heartbeat timeout that the client asks for, in ms; None = the entity's own.
        assumed_ms: the timeout to assume until a shard's answer has the entity's own, in ms.
    """

    def __init__(self, session: Session[Any], asked_ms: int | None, assumed_ms: int) -> None:
        self._session = session
        self._asked_ms = asked_ms
        self._answered_ms: int | None = None
        self._timeout_ms = asked_ms or assumed_ms

    def on_answer(self, answer: Answer) -> None:
        """Take the entity's timeout from an answer if the client asked for none; of several entities the shortest."""
        answered_ms = answer.counts.get("heartbeat_timeout_ms")
        if self._asked_ms is None and answered_ms:
            self._timeout_ms = self._answered_ms = min(self._answered_ms or answered_ms, answered_ms)

    def beat(self, shards: Iterable[Shard]) -> None:
        """Send a heartbeat to each shard that got no command for a third of the timeout."""
        before_ms = self._session.clock.elapsed_ms() - self._timeout_ms / 3
        for shard in shards:
            if shard.sent_at_ms <= before_ms and not shard.gone:
                self._session.send_if_open(shard, self._session.command("heartbeat", answer="errors"))

    @property
    def wait_s(self) -> float:
        """The longest wait until the next call of `beat`, in seconds."""
        return min(TICK_S, self._timeout_ms / 12_000)
