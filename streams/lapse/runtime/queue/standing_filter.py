"""What the filters of subscriptions cost: one that takes too much ends its subscription (X7, Q14).

A command is done at some time; a subscription's filter is evaluated on every message for as long as it is there. So
its work is added up over all steps, and held against the messages that it looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Final

from lapse.core.error_code import Refusal
from lapse.runtime.shard.effort import Effort

_EACH_S: Final = 0.001
"""CPU that a filter may take for each message on the average, s; ten seconds beside."""


class StandingFilters:
    """The filters of one shard's subscriptions, by their texts."""

    def __init__(self) -> None:
        self._efforts: dict[str, Effort] = {}
        self._refusals: dict[str, Refusal] = {}

    def measured(self, text: str, count: int) -> AbstractContextManager[None]:
        """Measure the work under a filter on so many messages."""
        effort = self._efforts.get(text)
        if effort is None:
            effort = self._efforts[text] = Effort(_EACH_S)
        return effort.spent_on(count)

    def too_costly(self, subscribed: Collection[str]) -> dict[str, Refusal]:
        """Filters of subscriptions that have just taken more than they may, and what to tell of each.

        They are refused from now on, until a worker takes the shard over. What is no filter of these is forgotten.
        """
        spent = {text: one for text, one in self._efforts.items() if text in subscribed and one.is_spent}
        found = {text: one.refusal("subscribe") for text, one in spent.items()}
        self._refusals |= found
        self._efforts = {text: one for text, one in self._efforts.items() if text in subscribed and text not in found}
        return found

    def refusal(self, text: str | None) -> Refusal | None:
        """Why a subscription with this filter is refused; None = it is not."""
        return self._refusals.get(text or "")
