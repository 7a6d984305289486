"""Handing a record to a producer whose queue may be full."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

_CONTROL_S: Final = 15.0


def produce(producer: Producer, topic: str, value: Any, key: Any, **options: Any) -> None:
    """Produce a record, once the producer's queue has room for it.

    Raises:
        KafkaException: the producer takes no records. If it has ended, such as because another one has taken over its
            transactional id, that is the error, and not "fatal error", which librdkafka raises here.
    """
    while True:
        try:
            producer.produce(topic, value, key, **options)
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FATAL:
                producer.abort_transaction(_CONTROL_S)  # raises what has ended the producer
            raise
        else:
            return
