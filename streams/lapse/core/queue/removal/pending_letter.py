"""Pending letters of messages that were removed: the broker refuses them, so they stay until it takes them (C27).

These messages have no place any more: they are neither delivered nor counted in the depth. The headers of the letter
are kept with each. Its payload is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason


class PendingLetter(NamedTuple):
    """What is known of one message whose letter waits.

    Attributes:
        reasons: why it was removed, in L14's order.
        at_ms: instant of the decision, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        deliveries: deliveries until then.
        cancels: cancels until then.
        detail: the text of the fault; empty = a standard sentence.
        subscription: whose doing it was, if anyone's.
        place: where it stood; a barrier behind it waits for its letter (C48).
    """

    reasons: tuple[Reason, ...]
    at_ms: int
    deadline_ms: int
    deliveries: int
    cancels: int
    detail: str = ""
    subscription: str = ""
    place: int = 0

    def facts(self) -> dict[str, Any]:
        """As the journal holds it."""
        return {**self._asdict(), "reasons": list(map(str, self.reasons))}

    def removal(self, topic: str, partition: int, offset: int) -> Removal:
        """The removal that its letter and its last event tell."""
        messages = Messages(
            topic,
            partition,
            np.array([offset], np.int64),
            None if self.deadline_ms == NEVER else np.array([self.deadline_ms], np.int64),
            np.array([self.deliveries], np.uint32),
            np.array([self.cancels], np.uint32),
        )
        place = np.array([self.place], np.int64)
        return Removal(messages, self.reasons, self.at_ms, True, self.detail, self.subscription, place)


def pending_letter_of(facts: Mapping[str, Any]) -> PendingLetter:
    """Read the journal's record."""
    return PendingLetter(**{**facts, "reasons": tuple(map(Reason, facts["reasons"]))})
