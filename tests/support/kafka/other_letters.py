"""Dead letters of other systems, by family (KIP-1191, -1034, -298, Spring), and the facts in their headers."""

import struct
from typing import Final

OTHERS: Final[dict[str, list[tuple[str, bytes]]]] = {
    "kafka": [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"share-1"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"gave up"),
    ],
    "streams": [
        ("__streams.errors.exception", b"java.lang.ArithmeticException"),
        ("__streams.errors.message", b"/ by zero"),
        ("__streams.errors.topic", b"orders"),
        ("__streams.errors.partition", b"3"),
        ("__streams.errors.offset", b"7"),
    ],
    "connect": [
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"7"),
        ("__connect.errors.connector.name", b"sink-1"),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
        ("__connect.errors.exception.message", b"no schema"),
    ],
    "spring": [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", struct.pack(">i", 3)),
        ("kafka_dlt-original-offset", struct.pack(">q", 7)),
        ("kafka_dlt-original-consumer-group", b"group-1"),
        ("kafka_dlt-exception-fqcn", b"ListenerExecutionFailedException"),
        ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
        ("kafka_dlt-exception-message", b"not now"),
    ],
}
"""The headers of a letter of `orders:3:7` in each family but lapse's own."""

RECORDED: Final[dict[str, tuple[str, list[str], str]]] = {
    "kafka": ("share-1", [], "gave up"),
    "streams": ("orders", ["java.lang.ArithmeticException"], "/ by zero"),
    "connect": ("sink-1", ["org.apache.kafka.connect.errors.DataException"], "no schema"),
    "spring": ("group-1", ["java.lang.IllegalStateException"], "not now"),
}
"""The expected entity, reasons and message, by family. The letter's topic is `dlq.orders`."""
