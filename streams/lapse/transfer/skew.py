"""Measures the difference between the clocks of two clusters, and warns if it is too large (C74)."""

from __future__ import annotations

import logging
import time
from typing import Final

from lapse.core.skew_warning import SkewWarning
from lapse_client.kafka.clock import ClientClock

logger: Final = logging.getLogger(__name__)


class Skew:
    """Compares the clocks of two clusters' brokers, as each side's commands have measured them.

    Args:
        most_ms: a greater difference is logged, ms.
    """

    def __init__(self, most_ms: int) -> None:
        self._warning = SkewWarning(most_ms)

    def of(self, here: ClientClock, there: ClientClock, cluster: str, target: str) -> float:
        """Return the present difference, ms; log it when it begins to exceed the limit, and again while it lasts.

        Args:
            here: the clock of the cluster that hands over.
            there: the clock of the other cluster.
            cluster: name of the former.
            target: name of the latter, with its queue.
        """
        skew_ms = there.now_ms() - here.now_ms()
        if self._warning.is_due(skew_ms, time.monotonic()):
            logger.warning(
                "The clock of %s is %.0f ms %s that of %s. Messages with less life left than that stay; "
                "set the clocks, or raise max_clock_skew",
                target,
                abs(skew_ms),
                "ahead of" if skew_ms > 0 else "behind",
                cluster,
            )
        return abs(skew_ms)
