"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lapse_gateway.scrape import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a gateway is told at its start.

    Attributes:
        host: the address that it listens on.
        port: the port; 0 = one that is free.
        names: hosts by which requests may call the gateway where there are no users; None = any.
        read_only: refuse whatever changes something: publishing, receiving and settling as well.
        certificate: file with the certificate for TLS, PEM; None = plain HTTP.
        key: file with its key, PEM.
        rate: requests a second that one user, or one address where there are no users, may send; None = any number.
        largest_body: bytes that a request may carry.
        body_timeout_s: how long a request may take to arrive, in seconds.
        answer_timeout_s: how long the answer of a worker is waited for, in seconds.
        idle_s: a subscription of which nobody has asked anything for so long, and which holds no lease, is ended.
        figures: addresses of workers' figures for Prometheus: what the console tells rates and lateness from.
        most_subscriptions: subscriptions and streams that are open at once.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: frozenset[str] | None = None
    read_only: bool = False
    certificate: Path | None = None
    key: Path | None = None
    rate: float | None = None
    largest_body: int = 8 << 20
    body_timeout_s: float = 30.0
    answer_timeout_s: float = 10.0
    idle_s: float = 10.0
    figures: tuple[Source, ...] = ()
    most_subscriptions: int = 200
