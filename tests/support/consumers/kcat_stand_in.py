"""A program with the few options of kcat that docs/protocol.md uses, for machines without kcat."""

import argparse
import sys

from confluent_kafka import Consumer, Message, Producer, TopicPartition


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-P", dest="produce", action="store_true")
    parser.add_argument("-C", dest="consume", action="store_true")
    parser.add_argument("-b", dest="servers", required=True)
    parser.add_argument("-t", dest="topic", required=True)
    parser.add_argument("-p", dest="partition", type=int, default=-1)
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-o", dest="offset", default="beginning")
    parser.add_argument("-f", dest="form", default="%s\\n")
    parser.add_argument("-e", dest="ends", action="store_true")
    parser.add_argument("-c", dest="most", type=int, default=0)
    parser.add_argument("-u", "-q", action="store_true")
    given = parser.parse_args()
    if given.produce:
        _produce(given)
    else:
        _consume(given)


def _produce(given: argparse.Namespace) -> None:
    producer = Producer({"bootstrap.servers": given.servers})
    headers: list[tuple[str, str | bytes | None]] = [tuple(header.split("=", 1)) for header in given.headers]
    where = {} if given.partition < 0 else {"partition": given.partition}
    for line in sys.stdin.buffer.read().splitlines():
        producer.produce(given.topic, line, headers=headers, **where)
    producer.flush()


def _consume(given: argparse.Namespace) -> None:
    settings = {"bootstrap.servers": given.servers, "group.id": "stand-in", "enable.auto.commit": False}
    consumer = Consumer(settings)
    known = consumer.list_topics(given.topic).topics[given.topic].partitions
    places = []
    for partition in known if given.partition < 0 else [given.partition]:
        low, high = consumer.get_watermark_offsets(TopicPartition(given.topic, partition))
        first = {"beginning": low, "end": high}.get(given.offset)
        if first is None:  # an offset, or a count from the end
            number = int(given.offset)
            first = number if number >= 0 else max(low, high + number)
        if not given.ends or first < high:
            places.append((TopicPartition(given.topic, partition, first), high))
    consumer.assign([place for place, _ in places])
    while not given.ends or any(
        consumer.position([place])[0].offset < high and place.offset < high for place, high in places
    ):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            sys.stdout.write(_shown(given.form, message))
            sys.stdout.flush()
            given.most -= 1
            if given.most == 0:
                break
            if given.ends and all(consumer.position([place])[0].offset >= high for place, high in places):
                break
    consumer.close()


def _shown(form: str, message: Message) -> str:
    headers = ",".join(f"{name}={(value or b'').decode()}" for name, value in message.headers() or ())
    text = form.replace("\\n", "\n").replace("%h", headers)
    return text.replace("%k", (message.key() or b"").decode(errors="replace")).replace(
        "%s", (message.value() or b"").decode(errors="replace")
    )


if __name__ == "__main__":
    main()
