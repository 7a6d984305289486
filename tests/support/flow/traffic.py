"""Messages that go through queues all the time, and how long each queue waited for the next one (C60, C90)."""

import itertools
import threading
import time

from support.kafka.log import until
from support.processes.deployment import Deployment

_EVERY_S = 0.05


class Traffic:
    """Twenty messages a second to each of some queues, and the longest time that none of one of them arrived."""

    def __init__(self, here: Deployment, stems: list[str]) -> None:
        self._here = here
        self._stems = stems
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(stem,)) for stem in stems]
        self._threads.append(threading.Thread(target=self._write))
        self._received: dict[str, list[float]] = {stem: [] for stem in stems}

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        until(lambda: all(len(times) > 20 for times in self._received.values()), "traffic", 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def longest_gap(self, since: float, to: float) -> float:
        """How long no message of some queue arrived between two instants of `time.monotonic()`, s."""
        longest = 0.0
        for times in self._received.values():
            within = [since, *(one for one in list(times) if since < one < to), to]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(within)))
        return longest

    def _read(self, stem: str) -> None:
        with self._here.subscriber(stem, 100, timeout_s=60) as subscriber:
            while not self._ending.is_set():
                if (one := subscriber.receive(0.1)) is not None:
                    self._received[stem].append(time.monotonic())
                    one.acknowledge()

    def _write(self) -> None:
        producer = self._here.connection.producer()
        for number in itertools.count():
            for stem in self._stems:
                producer.produce(self._here.name(stem), str(number).encode(), partition=0)
            producer.poll(0)
            if self._ending.wait(_EVERY_S):
                producer.flush(10)
                return
