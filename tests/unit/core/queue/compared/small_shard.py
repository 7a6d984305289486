"""Segments of a few places, short steps and a short ring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lapse.core.queue import timer as timers
from lapse.core.queue.delivery import dispatch as dispatching
from lapse.core.queue.groups import group_choice, group_codes, turn_columns, waiting_groups
from lapse.core.queue.groups.group_turn import COST
from lapse.core.queue.journal import queue_journal as journals
from lapse.core.queue.removal import truncation


@contextmanager
def small(size: int = 5, ring: int = 4, at_once: int = 3) -> Iterator[None]:
    """Segments of a few places, short steps and a short ring, so that what is rare happens all the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("lapse.core.queue.") and hasattr(module, "SIZE"):
                patch.setattr(module, "SIZE", size)
        patch.setattr(journals, "RING", ring)
        patch.setattr(journals, "_AHEAD", 1)
        patch.setattr(journals, "_MOVED", 1)
        patch.setattr(dispatching, "JUDGED_AT_ONCE", at_once)
        patch.setattr(group_choice, "LOOKED_AT_ONCE", at_once)
        patch.setattr(group_codes, "_LEAST_FORGOTTEN", 4)
        patch.setattr(turn_columns, "_GREAT_TAG", 9 * COST)
        patch.setattr(dispatching, "_SINGLY", 2)
        patch.setattr(dispatching, "BARRIERS_AT_ONCE", at_once)
        for module in (turn_columns, waiting_groups):
            patch.setattr(module, "_LOADED_AT_ONCE", at_once)
        for module in (dispatching, timers):
            patch.setattr(module, "STEP_MESSAGES", at_once)
        patch.setattr(truncation, "AT_ONCE", 2)
        yield
