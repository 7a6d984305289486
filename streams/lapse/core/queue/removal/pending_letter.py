"""Pending letter: a removed message whose dead letter the broker refuses, kept until the broker takes it (C27).

The message no longer has a place. It is neither delivered nor counted in the depth. The values for the letter's
headers are kept here, and its payload is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason


class PendingLetter(NamedTuple):
    """A removed message whose letter waits.

    Attributes:
        reasons: the reasons for its removal, in L14's order.
        at_ms: instant of the removal, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        deliveries: its delivery count at removal.
        cancels: its cancel count at removal.
        detail: text of the fault; empty = a standard sentence.
        subscription: id of the subscription that caused the removal; empty = none did.
        place: its former place; a barrier after it waits for its letter (C48).
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
        """Return the facts of its change, which the journal holds."""
        return {**self._asdict(), "reasons": list(map(str, self.reasons))}

    def removal(self, topic: str, partition: int, offset: int) -> Removal:
        """Return the removal from which its letter and its last event are made."""
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


def parse_pending_letter(facts: Mapping[str, Any]) -> PendingLetter:
    """Return the pending letter of the journal's facts."""
    return PendingLetter(**{**facts, "reasons": tuple(map(Reason, facts["reasons"]))})
