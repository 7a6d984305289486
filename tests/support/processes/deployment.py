"""Deployments: a `lapse.toml`, its topics and its worker processes, which tests kill and freeze."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import tomlkit
from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from lapse.embedded.process import freeze
from lapse.protocol import event, topic
from lapse.protocol.event import Event
from lapse.topic_creation import NewTopic
from lapse_client.kafka.connection import Connection
from lapse_client.queue.queue import Queue
from lapse_client.subscriber.subscriber import QueueSubscriber
from support.kafka import left_topics
from support.kafka.created_topic import create
from support.kafka.log import Headers, Tail, Written, until, write
from support.processes import fork_server
from support.suite import command

Settings = Mapping[str, Any]
LIVE: list["Deployment"] = []
"""Deployments of this process, whose logs a failed test shows."""

_FILE = {"definitions": "file"}
"""Workers serve what `lapse.toml` says, so that tests can change the file and start a worker again."""

_RESTORED = "; epoch "

_ASKED_AGAIN_S = 0.5
"""How long a client is kept for the next request for figures, s. Later requests use a new client without a past."""


class _KeptClient(NamedTuple):
    """A client that has just requested its queue's figures."""

    stem: str
    queue: Queue
    at: float


class WorkerProcess:
    """A worker in a process group of its own, forked from a Python that has imported lapse unless it is `fresh`."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str], fresh: bool = False) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._start = fork_server.fresh if fresh else fork_server.start
        self.log = log
        self.process: fork_server.Process | None = None
        self._seen = 0

    def start(self) -> "WorkerProcess":
        """Start the process, also after its end. `text` is the log from here on."""
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = self._start(self._arguments, log, self._environment)
        return self

    @property
    def text(self) -> str:
        """The log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode("utf-8", "replace")

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    @property
    def shards(self) -> int:
        """How many shards the worker has taken over since its start."""
        return self.text.count(_RESTORED)

    def wait_for_shards(self, count: int, timeout_s: float = 40.0) -> "WorkerProcess":
        """Wait until the worker has taken over `count` shards."""

        def ready() -> bool:
            assert self.running, f"the worker ended with {self.code}:\n{self.text[-3000:]}"
            return self.shards >= count

        until(ready, f"{count} shards taken over, {self.shards} were", timeout_s)
        return self

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; after SIGSTOP, wait until it stands still."""
        assert self.process is not None
        if number == signal.SIGSTOP:
            freeze(psutil.Process(self.process.pid))
        else:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the process group, and wait for the end of the process."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait until the process ends by itself, and return the exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    @property
    def code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return None if self.process is None else self.process.poll()


def apply(config: Path, environment: Mapping[str, str]) -> None:
    """Run `lapse apply --yes` in this process."""
    done = command.run("apply", "--yes", "--config", str(config), environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr


class Deployment:
    """A `lapse.toml` with unique names, its topics and its workers.

    In names of queues and in their settings, `{}` is replaced by a token of this deployment. The methods append it to
    the names that they get.
    """

    def __init__(self, servers: str, directory: Path, queues: Mapping[str, Settings], **lapse: Any) -> None:
        self.servers = servers
        self.directory = directory
        self.token = uuid.uuid4().hex[:8]
        self.app_id = f"app-{self.token}"
        self.connection = Connection(servers)
        self.config = directory / "lapse.toml"
        self.workers: list[WorkerProcess] = []
        self.tails: list[Tail] = []
        self._kept: _KeptClient | None = None
        self.configure(queues, **lapse)
        LIVE.append(self)

    def name(self, stem: str) -> str:
        """Return the full name of a queue or topic."""
        return f"{stem}-{self.token}"

    def configure(
        self,
        queues: Mapping[str, Settings],
        sow: Mapping[str, Settings] | None = None,
        topics: Mapping[str, Settings] | None = None,
        **lapse: Any,
    ) -> None:
        """Write `lapse.toml`, with `[topic.<name>]` for each of `topics`. Running workers do not read it."""
        own = {"app_id": self.app_id, "bootstrap_servers": self.servers, "session_timeout": "3s", **_FILE, **lapse}
        document: dict[str, Any] = {
            "lapse": {key: value for key, value in own.items() if value is not None},
            "queue": {self.name(stem): self.named(settings) for stem, settings in queues.items()},
            "sow": {self.name(stem): self.named(settings) for stem, settings in (sow or {}).items()},
            "topic": {self.name(stem): self.named(settings) for stem, settings in (topics or {}).items()},
        }
        self.config.write_text(tomlkit.dumps({key: value for key, value in document.items() if value}), "utf-8")

    def named(self, value: Any) -> Any:
        """Return settings with this deployment's token in the place of `{}`."""
        if isinstance(value, str):
            return value.replace("{}", f"-{self.token}")
        if isinstance(value, Mapping):
            return {self.named(key): self.named(item) for key, item in value.items()}
        return [self.named(item) for item in value] if isinstance(value, list | tuple) else value

    # Processes

    def lapse(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the `lapse` command with this configuration, workers and gateways in a process of their own."""
        arguments = (*arguments, "--config", str(self.config))
        if arguments[0] not in ("worker", "gateway"):
            return command.run(*arguments, environment=self.environment())
        return subprocess.run(
            [sys.executable, "-m", "lapse", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **self.environment()},
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every process of this deployment."""
        return {"KAFKA_BOOTSTRAP_SERVERS": self.servers, "COLUMNS": "200"}

    def apply(self) -> "Deployment":
        """Create the topics. Run the command in this process, as a new one would take seconds."""
        apply(self.config, self.environment())
        return self

    def worker(self, *options: str, supervised: bool = False, fresh: bool = False) -> WorkerProcess:
        """Start a worker with a data directory of its own."""
        number = len(self.workers)
        arguments = [*options, "--data-dir", str(self.directory / f"data-{number}")]
        if not supervised:
            arguments.append("--no-supervise")
        return self.run(["-m", "lapse", "worker", "--config", str(self.config), *arguments], fresh=fresh)

    def run(self, arguments: list[str], environment: Settings = {}, fresh: bool = False) -> WorkerProcess:  # noqa: B006
        """Start any Python process as a worker of this deployment; a `fresh` one has imported nothing yet."""
        log = self.directory / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(arguments, log, {**self.environment(), **environment}, fresh)
        self.workers.append(worker)
        return worker.start()

    def logs(self, length: int = 4000) -> str:
        """Return the last `length` characters of every log, and ten times that of workers that ended by themselves."""
        return "\n".join(
            f"--- {worker.log.name} (exit code {worker.code})\n"
            f"{worker.text[-(length if worker.running or worker.code == -signal.SIGKILL else 10 * length) :]}"
            for worker in self.workers
        )

    def close(self) -> None:
        """Kill every process. Further calls do nothing."""
        if self not in LIVE:
            return
        self._keep(None)
        self.close_tails()
        for worker in self.workers:
            if worker.running:
                worker.signal(signal.SIGCONT)
                worker.kill()
        LIVE.remove(self)

    # Kafka

    def write(
        self,
        stem: str,
        *values: bytes | str | None,
        headers: Headers = (),
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int = 0,
        **options: object,
    ) -> list[Written]:
        """Write records to a topic with a plain producer."""
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        return write(
            self.servers,
            self.name(stem),
            encoded,
            headers=headers,
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            **options,
        )

    def recreate(self, name: str, partitions: int = 1) -> None:
        """Delete a topic, by its full name, and create it again."""
        admin = AdminClient({"bootstrap.servers": self.servers})

        def topic_id() -> str:
            try:
                return str(admin.describe_topics(TopicCollection([name]))[name].result(15).topic_id)
            except KafkaException:  # no broker lists the topic yet
                return old

        old = ""
        old = topic_id()
        admin.delete_topics([name])[name].result(15)
        create(admin, NewTopic(name, partitions, 1, config={"message.timestamp.type": "LogAppendTime"}))
        until(lambda: topic_id() != old, "another topic id")

    def tail(self, name: str, from_end: bool = False) -> Tail:
        """Read a topic by its full name."""
        tail = Tail(self.servers, name, from_end)
        self.tails.append(tail)
        return tail

    def close_tails(self, first: int = 0) -> None:
        """Close the tails that were opened after the `first` ones. An idle one costs a broker 4 ms of CPU a second."""
        for tail in self.tails[first:]:
            tail.close()
        del self.tails[first:]

    def letters(self, stem: str, count: int, timeout_s: float = 20.0) -> list[Message]:
        """Wait for `count` dead letters of a queue, and fail if there are more."""
        tail = Tail(self.servers, topic.dead_letters(self.name(stem)))
        try:
            letters = tail.wait(count, timeout_s)
            assert len(letters) == count, [(letter.value(), letter.headers()) for letter in letters]
            return letters
        finally:
            tail.close()

    def events(self, stem: str) -> list[Event]:
        """Return all events of a queue up to now."""
        tail = Tail(self.servers, topic.events(self.name(stem)))
        try:
            return [event.decode(message.value() or b"") for message in tail.drain()]
        finally:
            tail.close()

    def awaited(self, stem: str, kind: str) -> list[Event]:
        """Wait for a first event of a kind, and return all of that kind. A letter comes before its event (D3)."""
        found = list[Event]()

        def came() -> bool:
            found.extend(one for one in self.events(stem) if one.event == kind)
            return bool(found)

        until(came, f"an event {kind} of {self.name(stem)}")
        return found

    def subscriber(self, stem: str, max_backlog: int = 1, **options: Any) -> QueueSubscriber:
        """Return a subscriber of a queue, not started."""
        return QueueSubscriber(self.name(stem), max_backlog, connection=self.connection, **options)

    def queue(self, stem: str) -> Queue:
        """Return a queue's client, not started."""
        return Queue(self.name(stem), connection=self.connection)

    def depth(self, stem: str) -> dict[str, int]:
        """Return a queue's figures now. Repeated requests within a short time share one client."""
        kept, self._kept = self._kept, None
        if kept is not None and (kept.stem != stem or time.monotonic() - kept.at > _ASKED_AGAIN_S):
            kept.queue.close()
            kept = None
        queue = self.queue(stem).start() if kept is None else kept.queue
        try:
            figures = queue.depth()
        except BaseException:
            queue.close()
            raise
        self._keep(_KeptClient(stem, queue, time.monotonic()))
        return figures

    def _keep(self, client: "_KeptClient | None") -> None:
        """Keep a client for the next request, and close the one that was kept."""
        before, self._kept = self._kept, client
        if before is not None:
            before.queue.close()

    def bookmark(self, stem: str, written: Written) -> str:
        """Return the bookmark of a message that was written."""
        return f"{self.name(stem)}:{written.partition}:{written.offset}"


def broker_now_ms() -> int:
    """Return the broker's time, ms since the epoch. The tests' broker runs on this machine."""
    return time.time_ns() // 1_000_000


Deploy = Callable[..., Deployment]


@pytest.fixture(scope="module")
def deploy(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """Return what makes deployments on the shared broker: `deploy({"orders": {"expiration": "5s"}})`."""
    made: list[Deployment] = []

    def make(queues: Mapping[str, Settings], servers: str = kafka, **lapse: Any) -> Deployment:
        left_topics.delete(kafka)
        made.append(Deployment(servers, tmp_path_factory.mktemp("lapse"), queues, **lapse))
        return made[-1]

    yield make
    for one in made:
        one.close()
        left_topics.leave(one.servers, token=one.token)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """Return the deployment of a test module's `QUEUES`, with one worker that its tests share."""
    deployment = deploy(request.module.QUEUES, **getattr(request.module, "LAPSE", {})).apply()
    deployment.worker()
    queues = request.module.QUEUES.values()
    shards = sum(1 if one.get("ordering") == "total" else one.get("partitions", 1) for one in queues)
    deployment.workers[0].wait_for_shards(shards)
    return deployment
