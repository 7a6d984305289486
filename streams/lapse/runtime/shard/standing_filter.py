"""Limits the CPU time of subscriptions' filters: a filter that takes too much ends its subscription (X7, Q14, S6).

A command ends at some time, but a subscription's filter is evaluated on every message. So its CPU time is added up over
all steps, and compared with the number of messages. While there are filters, messages are taken in by portions of a few
milliseconds, and other tasks have turns in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from lapse.core.error_code import Refusal
from lapse.runtime.shard.command_work import CommandWork, Portion

_MOST_S: Final = 1.0
_EACH_S: Final = 0.001
"""CPU that a filter may take in all, s: the first value, plus the second one for each message that it looked at."""


class StandingFilters:
    """The filters of one shard's subscriptions, by their texts.

    Args:
        most_at_once: the greatest number of messages in a portion.
    """

    def __init__(self, most_at_once: int) -> None:
        self._most = most_at_once
        self._portion = Portion(most_at_once)
        self._work_by_text: dict[str, CommandWork] = {}
        self._refusals: dict[str, Refusal] = {}

    def at_once(self, active: bool) -> int:
        """Return how many messages may be taken in per turn; `active` says whether there are filters."""
        return self._portion.size if active else self._most

    @contextmanager
    def at_work(self, active: bool = True) -> Iterator[None]:
        """Measure a portion if there are filters, to choose the size of the next one."""
        began = time.thread_time() if active else 0.0
        yield
        if active:
            self._portion.note_time(time.thread_time() - began)

    def work(self, text: str) -> CommandWork:
        """Return the work that a filter has taken so far."""
        work = self._work_by_text.get(text)
        if work is None:
            work = self._work_by_text[text] = CommandWork(_EACH_S, _MOST_S)
        return work

    def measured(self, text: str) -> AbstractContextManager[Callable[[int], None]]:
        """Measure the work under a filter. Call the yielded function with the number of messages."""
        return self.work(text).measured()

    def too_costly(self, subscribed: Collection[str]) -> dict[str, Refusal]:
        """Return the filters that have just exceeded their limit, each with its refusal.

        They are refused from now on, until a worker takes the shard over. Filters without a subscription are forgotten.
        """
        if not self._work_by_text:
            return {}
        spent = {text: one for text, one in self._work_by_text.items() if text in subscribed and one.is_spent}
        found = {text: one.refusal("subscribe") for text, one in spent.items()}
        self._refusals |= found
        self._work_by_text = {
            text: one for text, one in self._work_by_text.items() if text in subscribed and text not in found
        }
        return found

    def refusal(self, text: str | None) -> Refusal | None:
        """Return the refusal for a subscription with this filter; None if it is allowed."""
        return self._refusals.get(text or "")
