"""The host by which a request calls the gateway.

A page of another site can give its own name the address of this machine (DNS rebinding). A browser then takes the
gateway for a part of that site, and lets the page read and change what it has. Such a request still names the other
site as its host. So a gateway that has no users, and listens on this machine alone, answers to names of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from lapse_gateway.fault import Fault

_LOCAL: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, or a name for it."""
    if host == _LOCAL or host.endswith(f".{_LOCAL}"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(header: str | None, names: Collection[str] | None) -> None:
    """Do nothing for a request that calls the gateway by a name of its own.

    Args:
        header: the request's `Host`; None, or empty, for a program that sends none.
        names: what the gateway is called, beside the names of this machine; None = anything.

    Raises:
        Fault: it is another name.
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
