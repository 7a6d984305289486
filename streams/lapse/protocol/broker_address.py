"""Broker addresses: finds invalid ones before a client waits in vain for an answer (X7)."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_SERVERS: Final = "127.0.0.1:9092"
"""The brokers of a `lapse.toml` that names none."""

_PROTOCOLS: Final = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
_MOST: Final = 65_535
_PORT: Final = 9_092
_ADDRESS: Final = re.compile(r"(?:(?P<protocol>[^:/]*)://)?(?P<host>\[[^\]]*\]|[^:/\s]+)(?::(?P<port>\d+))?")
"""Matches a name, or an IPv6 address in brackets, with a port. Bare IPv6 addresses are left to librdkafka."""

_LONE: Final = re.compile("[\ud800-\udfff]")
"""Matches lone surrogates, which a command line contains for invalid UTF-8. Kafka's client fails on them."""


def address_fault(servers: str) -> str:
    """Return why addresses, separated by commas, are invalid, and what to do; empty if they are valid."""
    listed = [one for one in (one.strip() for one in servers.split(",")) if one]
    for one in listed:
        found = _ADDRESS.fullmatch(one)
        fits = found and (found["protocol"] or "plaintext").lower() in _PROTOCOLS and int(found["port"] or 0) <= _MOST
        if not (fits or _is_bare(one)) or _LONE.search(one):
            return _with_advice(f"{one[:100]!r} is no broker's address: expected host:port, with a port up to {_MOST}")
    return "" if listed else _with_advice("no broker is named")


def places(servers: str) -> list[tuple[str, int]] | None:
    """Return host and port of each of some valid addresses; None if one is an IPv6 address without brackets."""
    found = [_ADDRESS.fullmatch(text) for one in servers.split(",") if (text := one.strip())]
    known = [(one["host"].strip("[]"), int(one["port"] or _PORT)) for one in found if one]
    return known if len(known) == len(found) else None


def _is_bare(address: str) -> bool:
    """Return whether an address may be an IPv6 address without brackets."""
    return address.count(":") > 1 and "/" not in address


def _with_advice(what: str) -> str:
    return f"{what}. Correct KAFKA_BOOTSTRAP_SERVERS, or bootstrap_servers in lapse.toml"
