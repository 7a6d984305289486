"""A work queue: jobs with a lifetime, four threads, and a job that fails once and comes again."""

import json
import threading

from lapse_client import Delivery, Publisher, QueueSubscriber

JOBS = 20
done = threading.Semaphore(0)
failed_once = threading.Event()


def handle(delivery: Delivery) -> None:
    job = json.loads(delivery.value or b"null")
    if job["id"] == 7 and not failed_once.is_set():
        failed_once.set()
        raise RuntimeError("job 7 fails the first time: it is cancelled, and comes again")
    print(f"job {job['id']}, delivery {delivery.delivery_count}")
    done.release()


def main() -> None:
    with Publisher() as publisher:
        for number in range(JOBS):
            publisher.publish("jobs", json.dumps({"id": number}), key=str(number), ttl_ms=60_000)
    with QueueSubscriber("jobs", max_backlog=16) as subscriber:
        threading.Thread(target=close_when_done, args=(subscriber,)).start()
        subscriber.run(handle, threads=4)


def close_when_done(subscriber: QueueSubscriber) -> None:
    for _ in range(JOBS):
        done.acquire()
    subscriber.close()


if __name__ == "__main__":
    main()
