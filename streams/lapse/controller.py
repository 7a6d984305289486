"""Lets admin clients of librdkafka find the controller again after a broker died.

Admin requests go to the controller that a broker named. For some seconds that may be the one that has just died. A
client then waits for it, and asks who the controller is only when it renews its metadata: each five minutes by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FINDS_CONTROLLER: Final[Mapping[str, Any]] = {"topic.metadata.refresh.interval.ms": 1_000}
"""Settings for an admin client. One with 2,000 topics asks for no more CPU than before."""
