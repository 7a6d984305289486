"""Checks the host name by which a request addresses the gateway.

A page of another site can point its own name to this machine's address (DNS rebinding). The browser then takes the
gateway for a part of that site, and lets the page read and change everything. Such a request still has the other site
as its host. So a gateway without users that listens on this machine only answers only to names of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from lapse_gateway.fault import Fault

_LOCAL: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable from this machine only."""
    if host == _LOCAL or host.endswith(f".{_LOCAL}"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(header: str | None, names: Collection[str] | None) -> None:
    """Check that a request addresses the gateway by an allowed name.

    Args:
        header: the request's header `Host`; None or empty if the program sends none.
        names: the allowed names, beside those of this machine; None = any name.

    Raises:
        Fault: the name is not allowed.
    """
    if names is None or not header:
        return
    try:
        host = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        host = ""
    if host not in names and not is_loopback(host):
        raise Fault(
            "other_host",
            f"this gateway has no users, and is not called {header[:100]}: a page of that site could use it. Ask for "
            "it as localhost, start it with --allow-host and that name, or configure users in lapse.toml",
        )
