"""How Spark reaches Kafka: addresses and client options, TLS and SASL included, without showing a secret (X5)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lapse_client import Connection as Client
from lapse_client.kafka import client_properties
from lapse_spark import lapse_toml

_REFUSED = {
    "auto.offset.reset": "startingOffsets",
    "enable.auto.commit": "",
    "key.deserializer": "",
    "value.deserializer": "",
    "key.serializer": "",
    "value.serializer": "",
    "bootstrap.servers": "",
}

_SECURITY = re.compile(r"(?:security|sasl|ssl)\.")


_MOST_BYTES: Final = 64 << 20
"""Of a record that is written."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A Kafka cluster as Spark is to use it.

    Attributes:
        bootstrap: addresses, `host:port,host:port`.
        client: options of Kafka's Java client under their own names (`security.protocol`, `sasl.mechanism`,
            `sasl.jaas.config`, `ssl.truststore.location`, …). They are passed through as they are.
        librdkafka: the same for lapse's own client; None = they are translated.
    """

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    librdkafka: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what Spark's Kafka source refuses too, with the way out.

        Raises:
            ValueError: no address, or an option that Spark sets itself.
        """
        if not self.bootstrap.strip():
            raise ValueError(
                "no address of a Kafka cluster: give --bootstrap, or set KAFKA_BOOTSTRAP_SERVERS, or have a lapse.toml"
            )
        for name in self.client:
            if name in _REFUSED:
                instead = f"; use the source's option {_REFUSED[name]}" if _REFUSED[name] else ""
                raise ValueError(f"client option {name}: Spark sets it itself, leave it out{instead}")

    def reading(self) -> dict[str, str]:
        """Options for `spark.read` and `spark.readStream`: committed records only (C41), headers included."""
        return {
            "kafka.isolation.level": "read_committed",
            # A task reads one partition: larger fetches cost it little memory, and spare it waiting.
            "kafka.max.partition.fetch.bytes": "8388608",
            "kafka.max.poll.records": "5000",
            **self._given(),
            "includeHeaders": "true",
        }

    def writing(self) -> dict[str, str]:
        """Options for `DataFrame.write`: acknowledged by all replicas, retried without duplicates by the client."""
        return {
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            # The topic's own limit decides; Java's client would refuse what is above a megabyte.
            "kafka.max.request.size": str(_MOST_BYTES),
            "kafka.buffer.memory": str(2 * _MOST_BYTES),
            **self._given(),
            "includeHeaders": "true",
        }

    def _given(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            **{f"kafka.{name.removeprefix('kafka.')}": value for name, value in self.client.items()},
        }

    def of_lapse(self) -> Client:
        """The same cluster for lapse's own client, whose library has other names for some options.

        LAPSE_KAFKA_CONFIG, LAPSE_USER and LAPSE_SECRET count as they do for `lapse`; what is said here wins.

        Raises:
            ValueError: an option has no counterpart; set LAPSE_KAFKA_CONFIG then.
            LapseError: a file that the environment names cannot be read.
        """
        given = Client.from_environment(self.bootstrap)
        if os.environ.get("LAPSE_KAFKA_CONFIG"):
            return given
        own = _translated(self.client) if self.librdkafka is None else self.librdkafka
        return replace(given, options={**given.options, **own})

    @classmethod
    def from_file(cls, bootstrap: str, properties: Path) -> Connection:
        """Take the client options from a Java properties file, such as Kafka's own tools read with `--command-config`.

        A secret belongs in that file, readable by its owner only: on a command line every user of the machine sees it.

        Raises:
            ValueError: a line of it has no `name=value`, or an option is refused.
            OSError: the file cannot be read.
        """
        found = client_properties.read(properties)
        given = found.pop("bootstrap.servers", "")
        return cls(bootstrap or given, found)

    @classmethod
    def from_lapse_toml(cls, bootstrap: str, path: Path) -> Connection:
        """Take the brokers and `[security]` from `lapse.toml`, as `lapse worker` does.

        Args:
            bootstrap: addresses instead of those in the file, unless empty.
            path: the file.

        Raises:
            ValueError: it is not understood.
            OSError: it, or a file that it names, cannot be read.
        """
        servers, java, librdkafka = lapse_toml.read(path)
        return cls(bootstrap or servers, java, librdkafka)


def _translated(java: Mapping[str, str]) -> dict[str, str]:
    """Options of Java's client that say who we are and whom to trust, in librdkafka's words; others are left out.

    Raises:
        ValueError: one of them has no counterpart.
    """
    plain = {name.removeprefix("kafka."): value for name, value in java.items()}
    return client_properties.translated(
        {name: value for name, value in plain.items() if name == "client.id" or _SECURITY.match(name)}
    )
