"""A SOW topic: the latest price of each symbol, a query, and a subscription that tells what leaves its view."""

import json

from lapse_client import Publisher, SowClient


def main() -> None:
    with Publisher() as publisher, SowClient("prices") as prices:
        for symbol, price in (("AAA", 90), ("BBB", 110), ("CCC", 130)):
            publisher.publish("prices", json.dumps({"symbol": symbol, "price": price}), key=symbol)
        publisher.flush()
        with prices.sow_and_subscribe("/price > 100") as updates:
            publisher.publish("prices", json.dumps({"price": 95}), key="BBB", delta=True)
            publisher.publish("prices", json.dumps({"symbol": "DDD", "price": 150}), key="DDD", ttl_ms=1_000)
            publisher.flush()
            for update in updates.updates(timeout=3):
                print(update.kind, update.key, update.value, update.operation)
        for record in prices.query(order_by="/price DESC", top_n=2):
            print("now:", record.key, record.value)


if __name__ == "__main__":
    main()
