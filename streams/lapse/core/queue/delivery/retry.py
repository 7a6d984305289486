"""Retries: how long a returned message waits before its next delivery (Q24, C68, C69).

The wait grows with the delivery count. Jitter comes from a hash of message and count instead of randomness, so that
a replay gets the same waits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.days import DAY_MS, LAST_DAY, date_of
from lapse.core.lifetime import NEVER
from lapse.core.queue.delivery.retry_cause import LONGEST_MS, Cause

_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The constants of the hash function splitmix64."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """A queue's rule for the wait before a retry.

    Attributes:
        delay_ms: wait before the second delivery, ms; 0 = none, unless a message states one.
        factor: each further wait is longer by this factor, 1 or more.
        max_delay_ms: the longest wait, ms.
        jitter: the fraction, 0 to 1, by which a wait may be shorter or longer.
        on: the causes of return after which messages wait.
    """

    delay_ms: int = 0
    factor: float = 1.0
    max_delay_ms: int = LONGEST_MS
    jitter: float = 0.0
    on: frozenset[Cause] = frozenset(Cause)

    def waits_ms(
        self,
        topic: str,
        partition: int,
        offsets: NDArray[np.int64],
        deliveries: NDArray[np.uint32],
        stated_ms: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Return how long each of some messages of a source waits, ms; 0 = no wait.

        Args:
            topic: their topic.
            partition: its partition.
            offsets: offset of each message.
            deliveries: deliveries of each message so far.
            stated_ms: the delay that each message states, ms, negative without one; None = none states one.
        """
        base_ms = np.full(len(offsets), self.delay_ms, np.int64)
        if stated_ms is not None:
            base_ms = np.where(stated_ms < 0, base_ms, stated_ms)
        alike = list(zip(base_ms.tolist(), deliveries.tolist(), strict=True))
        grown_ms = {one: _backed_off_ms(self, *one) for one in set(alike)}
        waits_ms = np.array([grown_ms[one] for one in alike], np.int64)
        if not self.jitter:
            return waits_ms
        spread = 1.0 + self.jitter * (2.0 * _jitter(topic, partition, offsets, deliveries) - 1.0)
        return np.minimum(np.rint(waits_ms * spread).astype(np.int64), self.max_delay_ms)


NO_RETRY: Final = RetryRule()
"""The rule without configuration: a returned message is delivered at once, unless it states a delay."""


def wait_ends_ms(since_ms: NDArray[np.int64], waits_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when waits end, given their starts, ms since the epoch, at most `NEVER`."""
    return np.where(since_ms > NEVER - waits_ms, NEVER, since_ms + waits_ms)


def delay_text(first_ms: int, last_ms: int) -> str:
    """Return a text that says until when messages are delayed; the first and last instant are ms since the epoch."""
    if first_ms == last_ms:
        return f"delayed until {_format_instant(last_ms)}"
    return f"delayed, the first until {_format_instant(first_ms)}, the last until {_format_instant(last_ms)}"


def _format_instant(at_ms: int) -> str:
    days, ms = divmod(at_ms, DAY_MS)
    if days > LAST_DAY:
        return f"{at_ms} ms since the epoch"
    year, month, day = date_of(days)
    seconds, ms = divmod(ms, 1000)
    return f"{year:04}-{month:02}-{day:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}Z"


@lru_cache(maxsize=4096)
def _backed_off_ms(rule: RetryRule, delay_ms: int, deliveries: int) -> int:
    """Return the wait after a number of deliveries, without jitter, ms."""
    try:
        grown_ms = delay_ms * rule.factor ** max(0, deliveries - 1)
    except OverflowError:
        return rule.max_delay_ms if delay_ms else 0
    return min(rule.max_delay_ms, round(grown_ms)) if grown_ms < NEVER else rule.max_delay_ms


@lru_cache(maxsize=1024)
def _seed(topic: str, partition: int) -> np.uint64:
    name = hashlib.blake2b(f"{topic}:{partition}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(name, "little"))


def _jitter(
    topic: str, partition: int, offsets: NDArray[np.int64], deliveries: NDArray[np.uint32]
) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each message and delivery count, the same in every process."""
    golden, first, second = _MIX
    with np.errstate(over="ignore"):  # the hash is computed modulo 2 ** 64
        mixed = offsets.astype(np.uint64) * golden + deliveries.astype(np.uint64) * first + _seed(topic, partition)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * first
        mixed = (mixed ^ (mixed >> np.uint64(27))) * second
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)
