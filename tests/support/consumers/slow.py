"""A consumer that takes one message, and settles it when the test says so. Then it takes all further messages.

    python slow.py localhost:9092 orders.work

Prints a JSON line for each message that it gets, and one for the result of settling the first.
"""

import json
import sys

from lapse_client import Connection, QueueSubscriber


def main() -> None:
    servers, queue = sys.argv[1:]
    with QueueSubscriber(queue, 3, connection=Connection(servers)) as subscriber:
        first = subscriber.receive(60)
        assert first is not None
        _print_facts(got=(first.value or b"").decode(), count=first.delivery_count)
        sys.stdin.readline()
        (result,) = subscriber.settle("acknowledge", [first], wait=True)
        _print_facts(result=result.result)
        for delivery in subscriber.messages(5):
            _print_facts(got=(delivery.value or b"").decode(), count=delivery.delivery_count)
            delivery.acknowledge()


def _print_facts(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
