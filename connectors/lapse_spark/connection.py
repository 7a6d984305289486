"""Spark's connection to Kafka: addresses and client options, TLS and SASL included, without showing secrets (X5)."""

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
"""The most bytes of a record that is written."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A Kafka cluster, and how Spark connects to it.

    Attributes:
        bootstrap: addresses, `host:port,host:port`.
        client: options of Kafka's Java client under their own names (`security.protocol`, `sasl.mechanism`,
            `sasl.jaas.config`, `ssl.truststore.location`, …). They are passed on unchanged.
        librdkafka: options for lapse's own client; None = translate those of `client`.
    """

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    librdkafka: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse options that Spark's Kafka source refuses, with advice.

        Raises:
            ValueError: there is no address, or Spark sets an option itself.
        """
        if not self.bootstrap.strip():
            raise ValueError(
                "no address of a Kafka cluster: give --bootstrap-servers, or set KAFKA_BOOTSTRAP_SERVERS, or have a "
                "lapse.toml"
            )
        for name in self.client:
            if name in _REFUSED:
                instead = f"; use the source's option {_REFUSED[name]}" if _REFUSED[name] else ""
                raise ValueError(f"client option {name}: Spark sets it itself, leave it out{instead}")

    def reading(self) -> dict[str, str]:
        """Return options for `spark.read` and `spark.readStream`: committed records only (C41), headers included."""
        return {
            "kafka.isolation.level": "read_committed",
            # A task reads one partition, so larger fetches cost little memory and save waiting.
            "kafka.max.partition.fetch.bytes": "8388608",
            "kafka.max.poll.records": "5000",
            **self._stated_options(),
            "includeHeaders": "true",
        }

    def writing(self) -> dict[str, str]:
        """Return options for `DataFrame.write`: acknowledged by all replicas, and retried without duplicates."""
        return {
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            # The topic's own limit decides. Java's client would refuse records above a megabyte.
            "kafka.max.request.size": str(_MOST_BYTES),
            "kafka.buffer.memory": str(2 * _MOST_BYTES),
            **self._stated_options(),
            "includeHeaders": "true",
        }

    def _stated_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            **{f"kafka.{name.removeprefix('kafka.')}": value for name, value in self.client.items()},
        }

    def of_lapse(self) -> Client:
        """Return the connection of lapse's own client to the same cluster, with librdkafka's options.

        LAPSE_KAFKA_CONFIG, LAPSE_USER and LAPSE_SECRET count as they do for `lapse`. If LAPSE_KAFKA_CONFIG is set, its
        options replace those of this connection.

        Raises:
            ValueError: an option has no counterpart in librdkafka. Set LAPSE_KAFKA_CONFIG then.
            LapseError: a file that the environment names cannot be read.
        """
        given = Client.from_environment(self.bootstrap)
        if os.environ.get("LAPSE_KAFKA_CONFIG"):
            return given
        own = _translated(self.client) if self.librdkafka is None else self.librdkafka
        return replace(given, options={**given.options, **own})

    @classmethod
    def from_file(cls, bootstrap: str, properties: Path) -> Connection:
        """Take the client options from a Java properties file, as Kafka's own tools do with `--command-config`.

        Secrets belong in that file, readable by its owner only. On a command line, every user of the machine sees them.

        Raises:
            ValueError: a line has no `name=value`, or an option is refused.
            OSError: the file cannot be read.
        """
        found = client_properties.read(properties)
        given = found.pop("bootstrap.servers", "")
        return cls(bootstrap or given, found)

    @classmethod
    def from_lapse_toml(cls, bootstrap: str, path: Path) -> Connection:
        """Take the brokers and `[security]` from `lapse.toml`, as `lapse worker` does.

        Args:
            bootstrap: addresses to use instead of those in the file; empty = those in the file.
            path: path of the file.

        Raises:
            ValueError: the file is not valid.
            OSError: the file, or one that it names, cannot be read.
        """
        servers, java, librdkafka = lapse_toml.read(path)
        return cls(bootstrap or servers, java, librdkafka)


def _translated(java: Mapping[str, str]) -> dict[str, str]:
    """Translate the security options and `client.id` of Java's client to librdkafka's. Other options are dropped.

    Raises:
        ValueError: an option has no counterpart.
    """
    plain = {name.removeprefix("kafka."): value for name, value in java.items()}
    return client_properties.translated(
        {name: value for name, value in plain.items() if name == "client.id" or _SECURITY.match(name)}
    )
