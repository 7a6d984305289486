"""lapse: message lifetimes, leases and queues for Apache Kafka.

Where to begin reading: `docs/architecture.md` for the way of a message, `lapse.core` for the rules
(pure state machines), `lapse.runtime` for how Faust and Kafka drive them, `lapse.protocol` for what
is on the wire.
"""

__version__ = "0.1.0"
