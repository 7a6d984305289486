"""Effects exactly once in PostgreSQL: a message's bookmark stands in the transaction of its effects.

    python examples/exactly_once_postgres.py publish 100     publishes payments of 1 to 100
    python examples/exactly_once_postgres.py work            books them; kill it, and start it again
    python examples/exactly_once_postgres.py balance

The database is the one that PGHOST, PGUSER and their like name. It takes `pip install 'psycopg[binary]'`.
"""

import sys

import psycopg

from lapse_client import Delivery, Publisher, QueueSubscriber

QUEUE = "payments"
TABLES = """
    CREATE TABLE IF NOT EXISTS done (bookmark text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS balance (account text PRIMARY KEY, amount bigint NOT NULL);
"""
BOOK = """
    INSERT INTO balance VALUES (%s, %s)
    ON CONFLICT (account) DO UPDATE SET amount = balance.amount + excluded.amount
"""


def publish(count: int) -> None:
    with Publisher() as publisher:
        for amount in range(1, count + 1):
            publisher.publish(QUEUE, str(amount), key=str(amount))


def work(database: "psycopg.Connection[tuple[int]]") -> None:
    with QueueSubscriber(QUEUE, max_backlog=100) as subscriber:
        for delivery in subscriber:
            with delivery:  # acknowledges once the database has committed
                book(database, delivery)


def book(database: "psycopg.Connection[tuple[int]]", delivery: Delivery) -> None:
    """Book a payment, and remember in the same transaction that it is booked."""
    with database.transaction():
        new = database.execute("INSERT INTO done VALUES (%s) ON CONFLICT DO NOTHING", [str(delivery.bookmark)])
        if new.rowcount:  # else an earlier delivery has done it, and was not acknowledged
            database.execute(BOOK, ["shop", int(delivery.value or b"0")])


def balance(database: "psycopg.Connection[tuple[int]]") -> int:
    found = database.execute("SELECT amount FROM balance WHERE account = 'shop'").fetchone()
    return found[0] if found else 0


def main(what: str, count: str = "100") -> None:
    if what == "publish":
        publish(int(count))
        return
    with psycopg.connect(autocommit=True) as database:
        database.execute("SELECT pg_advisory_lock(1)")  # two workers that start at once make the tables once
        database.execute(TABLES)
        database.execute("SELECT pg_advisory_unlock(1)")
        if what == "work":
            work(database)
        else:
            print(balance(database))


if __name__ == "__main__":
    main(*sys.argv[1:])
