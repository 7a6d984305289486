"""The settings of queues that the transport creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_IDLE_AT_LEAST_MS: Final = 300_000
"""The shortest time without use after which a temporary queue may delete itself, in ms (Q18)."""

_PRIORITY: Final = "/properties/priority"


def queue_settings(declared: Mapping[str, Any], transport_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a new queue.

    Args:
        declared: kombu's options of the declaration.
        transport_options: options of the connection. Their `queue_settings` take precedence.
    """
    arguments = declared.get("arguments") or {}
    settings: dict[str, Any] = {"expiration": "enabled"}
    visibility_s = transport_options.get("visibility_timeout")
    if visibility_s is not None:
        settings["lease_period"] = f"{round(float(visibility_s) * 1000)}ms"
    if "x-message-ttl" in arguments:
        settings["expiration"] = f"{int(arguments['x-message-ttl'])}ms"
    if arguments.get("x-max-priority"):
        settings["priority"] = _PRIORITY
    if arguments.get("x-expires") or declared.get("auto_delete") or declared.get("exclusive"):
        idle_ms = max(_IDLE_AT_LEAST_MS, int(arguments.get("x-expires") or 0))
        settings["auto_delete_on_idle"] = f"{idle_ms}ms"
    return settings | dict(transport_options.get("queue_settings") or {})
