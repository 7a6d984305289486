"""Drains a queue as fast as it goes: lists of deliveries, acknowledged as ranges."""

import time

from lapse_client import Publisher, QueueSubscriber

MESSAGES = 100_000


def main() -> None:
    with QueueSubscriber("jobs", max_backlog=20_000) as subscriber, Publisher() as publisher:
        began, seen = time.monotonic(), 0
        for number in range(MESSAGES):
            publisher.publish("jobs", b"x" * 200, key=str(number))
        for batch in subscriber.batches(max_size=5_000, timeout=10):
            subscriber.acknowledge(batch)
            seen += len(batch)
            if seen >= MESSAGES:
                break
        print(f"{seen / (time.monotonic() - began):,.0f} messages/s, published, delivered and acknowledged")


if __name__ == "__main__":
    main()
