"""The settings of a gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lapse_gateway.scrape import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a gateway.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 = any free port.
        names: host names that requests may use if there are no users; None = any.
        read_only: whether to refuse everything that changes something, publishing, receiving and settling included.
        certificate: PEM file with the certificate for TLS; None = plain HTTP.
        key: PEM file with its key.
        rate: most requests per second of one user, or of one address without users; None = no limit.
        largest_body: greatest size of a request's body, in bytes.
        body_timeout_s: how long a body may take to arrive, in seconds.
        answer_timeout_s: how long to wait for a worker's answer, in seconds.
        idle_s: after this time without requests, a subscription that holds no lease is ended, in seconds.
        figures: addresses of workers' figures for Prometheus, from which the console shows rates and lateness.
        most_subscriptions: most subscriptions, and most streams, that are open at once.
        payloads: by entity, what reads payloads that are not JSON, for filters of dead letters.
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
    payloads: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)
