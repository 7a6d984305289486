"""The clock of a test: it moves only when the test moves it, and everything that is due happens in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.testing.cluster import Cluster
from lapse_client.kafka.clock import ClientClock

BEGIN_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, ms since the epoch."""


class VirtualClock:
    """The broker's clock of a test.

    Args:
        cluster: the cluster.
        next_due_ms: returns when a shard's timer is due next, ms since the epoch.
        silence_ms: returns for how long no client may be silent, ms. Heartbeats are sent as time moves.
    """

    def __init__(self, cluster: Cluster, next_due_ms: Callable[[], int], silence_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._next_due_ms = next_due_ms
        self._silence_ms = silence_ms

    @property
    def now_ms(self) -> int:
        """The instant, ms since the epoch."""
        return self._cluster.now_ms

    def advance(self, seconds: float) -> None:
        """Let time pass. What is due meanwhile happens at its own instant, in order.

        Everything that was published or settled before counts as of before. Clients send their heartbeats meanwhile.

        Args:
            seconds: how long, to the millisecond.

        Raises:
            ValueError: not a number of seconds, or less than 0: time does not go back.
        """
        if not _is_duration(seconds):
            raise ValueError(f"advance: {seconds!r}: expected seconds, 0 or more; time does not go back")
        self.advance_to(self.now_ms + round(seconds * 1000))

    def advance_to(self, instant_ms: int) -> None:
        """Let time pass until an instant, like `advance`.

        Args:
            instant_ms: the instant, ms since the epoch.

        Raises:
            ValueError: it is past, or no instant in whole ms.
        """
        given: object = instant_ms
        if isinstance(given, bool) or not isinstance(given, int) or given > NEVER:
            raise ValueError(f"{instant_ms!r}: expected an instant, in whole ms since the epoch, up to {NEVER}")
        if instant_ms < self.now_ms:
            raise ValueError(f"{instant_ms} is past: it is {self.now_ms}, and time does not go back")
        self._cluster.settle()
        while self.now_ms < instant_ms:
            due_ms = max(min(self._next_due_ms(), NEVER), self.now_ms + 1)
            with self._cluster.changed:
                self._cluster.now_ms = min(instant_ms, due_ms, self.now_ms + self._silence_ms())
            self._cluster.settle()


def _is_duration(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < NEVER


class VirtualClientClock(ClientClock):
    """The clock of a test as the client sees it: measured, and exact.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def elapsed_ms(self) -> float:
        """See `ClientClock`."""
        return self._cluster.now_ms

    @property
    def is_measured(self) -> bool:
        """See `ClientClock`."""
        return True

    @property
    def uncertainty_ms(self) -> float:
        """See `ClientClock`."""
        return 0.0

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Do nothing, because the clock is known."""

    def now_ms(self) -> float:
        """See `ClientClock`."""
        return self._cluster.now_ms

    def past_ms(self) -> float:
        """See `ClientClock`."""
        return self._cluster.now_ms
