"""A consumer that works in transactions, many messages in each, until it is killed.

python atomic.py <servers> <queue> <topic of outputs>
"""

import sys

from lapse_client import Connection, QueueSubscriber, TransactionFailed


def main(servers: str, queue: str, topic: str) -> None:
    connection = Connection(servers)
    with QueueSubscriber(queue, 2_000, connection=connection, heartbeat_timeout_ms=1_000) as subscriber:
        for batch in subscriber.batches(200):
            try:
                with subscriber.transaction(batch) as tx:
                    for delivery in batch:
                        tx.produce(topic, delivery.value)
            except TransactionFailed as failed:
                print(failed, flush=True)
            else:
                if tx.repeated:
                    print("committed before", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
