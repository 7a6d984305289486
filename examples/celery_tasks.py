"""Celery on queues of lapse: lifetimes, start times, retries, results, and tasks that survive their worker.

The workers of lapse have to run. Celery creates its queue; with `definitions = "file"` add `[queue.shop]` to the file.
Then, in two terminals::

    celery -A celery_tasks worker --concurrency 2
    python celery_tasks.py
"""

import os
import time

from celery import Celery, Task

import lapse_kombu  # noqa: F401  # from now on Celery knows `lapse://`

app = Celery(
    "shop",
    broker=f"lapse://{os.environ.get('KAFKA_BOOTSTRAP_SERVERS', 'localhost:9092')}",
    backend="rpc://",  # a result comes to the program that has sent the task
)
app.conf.update(
    task_default_queue=os.environ.get("SHOP_QUEUE", "shop"),
    task_queue_max_priority=9,
    task_acks_late=True,  # a task is acknowledged when it is done, so it survives its worker
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 30, "deployment": os.environ.get("LAPSE_DEPLOYMENT", "lapse")},
    broker_connection_retry_on_startup=True,
)


@app.task(name="shop.pack")
def pack(order: str, seconds: float = 0.0) -> str:
    """Take some time, and say so."""
    print(f"packing {order}", flush=True)
    time.sleep(seconds)
    print(f"packed {order}", flush=True)
    return f"{order} is packed"


@app.task(name="shop.charge", bind=True, max_retries=3)
def charge(self: Task, order: str, failures: int) -> None:
    """Fail so often, and try again a second later."""
    if self.request.retries < failures:
        print(f"charging {order} failed", flush=True)
        raise self.retry(countdown=1)
    print(f"charged {order}", flush=True)


if __name__ == "__main__":
    print(pack.delay("order 1").get(timeout=60))
    pack.apply_async(["order 2"], countdown=5)  # the queue keeps it until then, no worker does
    pack.apply_async(["order 3"], expires=60)  # nobody packs it after a minute: it is a dead letter then
    pack.apply_async(["order 4"], priority=9)
    charge.delay("order 5", failures=2)
