"""Reads workers' figures from their addresses. A name with many addresses stands for many workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 256 << 20
_MOST_WORKERS: Final = 100
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(slots=True)
class Reading:
    """The result of reading a source once.

    Attributes:
        pages: the text of each worker, by its address.
        faults: a text for each worker that did not answer.
    """

    pages: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The URL of the figures of one worker, or of many workers behind one name.

    Attributes:
        url: the URL as given.
        secure: whether TLS is used.
        host: host name or address.
        port: port number.
        path: path of the figures.
    """

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Source:
        """Parse `http://host:port/metrics`. The default path is `/metrics`.

        Raises:
            ValueError: the URL is not valid.
        """
        try:
            found = urlsplit(url)
            host, port = found.hostname, found.port or _PORTS.get(found.scheme, 0)
        except ValueError as error:
            raise ValueError(f"{url[:100]!r} is no address: {error}") from error
        if not host or found.scheme not in _PORTS or found.query or found.fragment or found.username is not None:
            raise ValueError(f"{url[:100]!r}: expected the address of a worker's figures, http://host:9464/metrics")
        path = found.path if found.path not in ("", "/") else "/metrics"
        return cls(url=url, secure=found.scheme == "https", host=host, port=port, path=path)

    def read(self) -> Reading:
        """Read the figures at every address of the name. This call blocks."""
        reading = Reading()
        try:
            addresses = [self.host] if self.secure else self._addresses()
        except OSError as error:
            reading.faults.append(f"the figures of {self.url} cannot be had: {error.strerror or error}")
            return reading
        for address in addresses[:_MOST_WORKERS]:
            try:
                reading.pages[f"{address}:{self.port}{self.path}"] = self._text(address)
            except (OSError, HTTPException, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                reading.faults.append(f"the figures of {self.url} ({address}) cannot be had: {why}")
        return reading

    def _addresses(self) -> list[str]:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = sorted({str(one[4][0]) for one in found})
        # A worker may have addresses of both IPv4 and IPv6, and must not be counted twice.
        return [one for one in addresses if ":" not in one] or addresses

    def _text(self, address: str) -> str:
        kind = HTTPSConnection if self.secure else HTTPConnection
        connection = kind(address, self.port, timeout=_TIMEOUT_S)
        try:
            host = f"[{self.host}]" if ":" in self.host else self.host
            connection.request("GET", self.path, headers={"Host": f"{host}:{self.port}"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"the answer has the status {answer.status}")
            return answer.read(_MOST_BYTES).decode("utf-8", "replace")
        finally:
            connection.close()
