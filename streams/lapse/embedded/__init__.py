"""A real single-node Kafka from pinned jars, without Docker and without an installed Kafka.

Read in this order: `jars` (which files, and how they get here), `java` (what runs them), `settings` (how the broker is
configured), `process` and `supervise` (which leave no JVM behind), `kafka` (the broker as an object), `instance` and
`daemon` (the broker that outlives a command), `broker` (a given or an embedded one).
"""

from lapse.embedded.broker import broker
from lapse.embedded.errors import BrokerFailed, EmbeddedError, JarCorrupt, JarUnavailable, JavaMissing
from lapse.embedded.kafka import EmbeddedKafka

__all__ = [
    "BrokerFailed",
    "EmbeddedError",
    "EmbeddedKafka",
    "JarCorrupt",
    "JarUnavailable",
    "JavaMissing",
    "broker",
]
