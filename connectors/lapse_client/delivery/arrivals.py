"""Buffers of deliveries for the application. The channel's thread adds items, any other thread takes them."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LONGEST_WAIT_S: Final = 0.5
"""The longest uninterrupted wait of a thread, in seconds.

Python acts on a Ctrl-C that comes just before a wait only after that wait.
"""


class Waiting(ABC, Generic[T]):
    """Blocks threads until a buffer has items. Subclasses hold the buffer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._error: BaseException | None = None
        self._waiters = 0
        self.on_change: Callable[[], None] | None = None
        """Called in another thread after items came or the end was reached, to wake up an event loop."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end of the items. Takers get the remaining items, and then the error or an empty list."""
        with self._changed:
            self._ended = True
            self._error = self._error or error
            self._changed.notify_all()
        self._notify()

    def take(self, most: int, timeout_s: float | None = 0.0) -> list[T]:
        """Remove and return up to `most` items, waiting for the first one.

        Args:
            most: the greatest number of items.
            timeout_s: how long to wait, in seconds; None = until an item or the end comes.

        Returns:
            The items; an empty list after the timeout, or at the end.

        Raises:
            BaseException: the error that `end` got, if it got one.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                if taken := self._pop_some(most):
                    return taken
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    return []
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._waiters += 1
                try:
                    self._changed.wait(LONGEST_WAIT_S if left is None else min(left, LONGEST_WAIT_S))
                finally:
                    self._waiters -= 1

    @abstractmethod
    def _pop_some(self, most: int) -> list[T]:
        """Remove and return up to `most` items; the caller holds the lock."""

    def _wake(self, count: int) -> None:
        """Wake takers after `count` items came. The caller holds the lock."""
        if self._waiters:
            self._changed.notify_all() if count > 1 else self._changed.notify()

    def _notify(self) -> None:
        if self.on_change is not None:
            self.on_change()


class Arrivals(Waiting[T]):
    """A buffer of items with waiting. It moves whole lists, so that its lock costs nothing per item."""

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: list[T]) -> None:
        """Add items in order; after the end they are dropped."""
        with self._changed:
            if self._ended:
                return
            self._items.extend(items)
            self._wake(len(items))
        self._notify()

    def pop(self) -> T | None:
        """Remove and return the first item, or None; never waits, and needs no lock."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def remove(self, unwanted: Callable[[T], bool]) -> int:
        """Drop unwanted items, and return their number."""
        with self._changed:
            # In place: `pop` takes from the same deque without the lock.
            dropped = 0
            for _ in range(len(self._items)):
                item = self.pop()
                if item is None:
                    break
                if unwanted(item):
                    dropped += 1
                else:
                    self._items.append(item)
        return dropped

    def _pop_some(self, most: int) -> list[T]:
        """Remove and return up to `most` items, while `pop` in other threads may take some."""
        popleft = self._items.popleft
        taken: list[T] = []
        try:
            for _ in range(min(most, len(self._items))):
                taken.append(popleft())  # noqa: PERF401  # taken items must not be lost when the next one is missing
        except IndexError:
            pass
        return taken
