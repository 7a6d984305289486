"""Opens admin clients of librdkafka that find the controller again after a broker died.

Admin requests go to the controller that a broker named. For some seconds that may be the one that has just died. A
client then waits for it, and asks who the controller is only when it renews its metadata: each five minutes by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.admin import AdminClient

_RENEWED_MS: Final = 1_000
"""How often the metadata is renewed, in ms. A client with 2,000 topics asks for no more CPU than before."""


def admin_client(settings: Mapping[str, Any]) -> AdminClient:
    """Open an admin client.

    Args:
        settings: librdkafka's settings.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    return AdminClient({"topic.metadata.refresh.interval.ms": _RENEWED_MS, **settings})
