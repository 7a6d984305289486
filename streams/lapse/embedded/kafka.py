"""The embedded broker as an object: start, stop, kill, pause and restart, with the same ports and data."""

import atexit
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lapse.embedded import class_archive, jars
from lapse.embedded.errors import BrokerFailed
from lapse.embedded.instance import Instance
from lapse.embedded.java import find_java
from lapse.embedded.process import Jvm, environment
from lapse.embedded.settings import Ports, cluster_id, free_ports, prepare, server_properties, write_files
from lapse.topic_creation import NewTopic

_LEAST_FREE_BYTES = 64 << 20
_BIND_ATTEMPTS = 4
_TAKEN = ("Address already in use", "BindException")

_FORMAT_S = 120.0
"""How long Kafka's own tool may take to prepare an empty data directory, in seconds."""


class EmbeddedKafka:
    """A single-node Kafka. As a context manager it starts on entry, and stops and cleans up on exit.

    After `stop` or `kill`, `start` starts it again with the same ports and data. It never outlives this process, unless
    `detached`.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        ports: Ports | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        quick_start: bool = True,
        java_options: Sequence[str] | None = None,
        detached: bool = False,
        start_timeout_s: float = 90,
    ) -> None:
        """Describe a broker; nothing is started yet.

        Args:
            data: Directory to keep data, settings and log in; None for a temporary one, deleted by `close`.
            ports: TCP ports to use; None for free ones, chosen at the first start.
            properties: Further broker properties, or other values for ours.
            heap_mb: Largest heap of the JVM, in MiB.
            quick_start: Whether to use only the fast compiler: it starts sooner, and is slower later. Benchmarks turn
                it off.
            java_options: Options for compiler and collector, such as `-XX:+UseZGC`, instead of those for `quick_start`.
            detached: Whether the broker goes on when this process ends.
            start_timeout_s: How long `start` waits for the broker to answer, s.
        """
        self._kept = data is not None
        self._data = data.absolute() if data is not None else None
        self._ports = ports
        self._ports_given = ports is not None
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._quick_start = quick_start
        self._java_options = java_options
        self._detached = detached
        self._start_timeout_s = start_timeout_s
        self._jvm: Jvm | None = None

    def __enter__(self) -> "EmbeddedKafka":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `host:port`; the same over restarts."""
        return f"127.0.0.1:{self.ports.client}"

    @property
    def ports(self) -> Ports:
        """The ports in use.

        Raises:
            BrokerFailed: The broker was never started, so none are chosen yet.
        """
        if self._ports is None:
            raise BrokerFailed("The embedded broker has no ports before its first start().")
        return self._ports

    @property
    def data(self) -> Path:
        """The directory with data, settings and log.

        Raises:
            BrokerFailed: It is a temporary one, and the broker was never started.
        """
        if self._data is None:
            raise BrokerFailed(
                "The embedded broker has no data directory before its first start(); call start() first."
            )
        return self._data

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.data / "kafka.log"

    @property
    def jvm(self) -> Jvm:
        """The running process.

        Raises:
            BrokerFailed: The broker does not run.
        """
        if self._jvm is None or not self._jvm.alive:
            raise BrokerFailed("The embedded broker does not run; call start() first.")
        return self._jvm

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._jvm is not None and self._jvm.alive

    def start(self) -> None:
        """Start the broker, after formatting an empty data directory, and wait until topics can be created.

        Raises:
            JavaMissing: There is no Java >= 17.
            JarUnavailable: Kafka's jars are neither cached nor downloadable.
            BrokerFailed: It runs already, cannot use its data directory, or does not come up. In the last case the
                message ends with the last lines of its log.
        """
        if self.running:
            raise BrokerFailed(f"The embedded broker runs already, at {self.bootstrap_servers}; stop() it first.")
        java = str(find_java().executable)
        class_path = ":".join(str(file) for file in jars.jar_files(jars.KAFKA))
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="lapse-kafka-"))
        if any("\udc80" <= letter <= "\udcff" for letter in str(self._data)):  # Python's form of other bytes
            raise BrokerFailed(f"{self._data!r} is no path in the encoding of this locale; choose another directory.")
        self._data.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(self._data).free) < _LEAST_FREE_BYTES:
            raise BrokerFailed(
                f"{self._data} has only {free / 2**20:.0f} MiB free, and a broker ends when its disk is full. "
                "Make room, or choose another directory."
            )
        atexit.register(self._at_exit)
        for attempt in range(_BIND_ATTEMPTS):
            self._ports = self._ports or free_ports()
            server, logging = write_files(self._data, server_properties(self._data, self._ports, self._properties))
            classes = [f"-Dlog4j2.configurationFile={logging}", "-cp", class_path]
            if not (self._data / "log" / "meta.properties").is_file():
                self._prepare([java, *self._brief_options(), *classes], server)
            first_byte = self.log.stat().st_size if self.log.exists() else 0
            self._jvm = self._launch([java, *self._jvm_options(), *classes, "kafka.Kafka", str(server)])
            Instance.note(self._data, self._jvm, self.bootstrap_servers)
            try:
                self._await_ready(first_byte)
            except BrokerFailed:
                self.kill()
                if attempt + 1 == _BIND_ATTEMPTS or not any(text in self._log_from(first_byte) for text in _TAKEN):
                    raise
                if self._ports_given:
                    time.sleep(0.5)
                else:
                    self._ports = None
            else:
                self._ports_given = True  # clients know these ports now
                return

    def stop(self, timeout_s: float = 15) -> None:
        """Shut the broker down in order, keeping its data; kill it if that takes longer than `timeout_s`."""
        if self._jvm is not None:
            self._jvm.terminate(timeout_s)
            self._jvm = None

    def kill(self) -> None:
        """Kill the broker with SIGKILL, like a crash, keeping its data."""
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm = None

    def restart(self) -> None:
        """Stop in order and start again, on the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the broker: connections stay open, but nothing is answered."""
        self.jvm.pause()

    def resume(self) -> None:
        """Resume a frozen broker."""
        self.jvm.resume()

    def close(self) -> None:
        """Stop the broker, and delete its data directory unless one was given."""
        atexit.unregister(self._at_exit)
        self.stop()
        if self._data is not None and not self._kept:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    def _at_exit(self) -> None:
        """Clean up at the end of the process; a detached broker goes on."""
        if not self._detached:
            self.close()

    def _launch(self, command: list[str]) -> Jvm:
        """Start the JVM, supervised or detached."""
        if self._detached:
            return Jvm.detached(command, self.log)
        return Jvm.supervised(command, self.log, remove=None if self._kept else self.data)

    def _jvm_options(self) -> list[str]:
        """Return the options of the broker's JVM."""
        if self._java_options is not None:
            return [*self._common_options(), *self._java_options]
        if self._quick_start:
            return self._brief_options()
        lasting = [f"-Xms{self._heap_mb}m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [*self._common_options(), *lasting, *class_archive.options()]

    def _brief_options(self) -> list[str]:
        """Return the options of a JVM that starts quickly and does little.

        The tool that prepares the data uses them, too.
        """
        return [*self._common_options(), *class_archive.QUICK, *class_archive.options()]

    def _common_options(self) -> list[str]:
        # -UsePerfData: no shared file per JVM in /tmp, which a killed JVM would leave behind.
        return [f"-Xmx{self._heap_mb}m", "-XX:-UsePerfData", "-Djava.awt.headless=true"]

    def _prepare(self, command: list[str], server: Path) -> None:
        """Prepare an empty data directory. Only Kafka's tool considers given properties."""
        checkpoint = class_archive.checkpoint()
        if checkpoint is None or self._properties:
            self._format(command, server)
        else:
            prepare(self.data / "log", checkpoint)

    def _format(self, command: list[str], server: Path) -> None:
        """Prepare an empty data directory with Kafka's own tool."""
        arguments = [*command, "kafka.tools.StorageTool", "format", "-t", cluster_id(), "-c", str(server)]
        try:
            answer = subprocess.run(
                arguments, capture_output=True, text=True, timeout=_FORMAT_S, check=False, env=environment()
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(
                f"Kafka has not prepared {self.data} within {_FORMAT_S:g} s. Try again when the machine is less busy"
            ) from error
        if answer.returncode != 0:
            lines = [line for line in (answer.stderr or answer.stdout).splitlines() if not line.startswith("\tat ")]
            raise BrokerFailed(f"Kafka could not prepare {self.data}: {' '.join(lines)[-1500:]}")

    def _await_ready(self, first_byte: int) -> None:
        """Wait until the broker answers a metadata request and would create a topic."""
        deadline = time.monotonic() + self._start_timeout_s
        pending: Exception | None = None
        formatted_as = self._cluster_id()
        # log_level 0: refused connections are expected here.
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap_servers, "reconnect.backoff.max.ms": 200, "log_level": 0}
        )
        while time.monotonic() < deadline:
            if not self.running:
                raise BrokerFailed(f"The embedded broker ended while starting. {self._log_tail(first_byte)}")
            try:
                cluster = admin.list_topics(timeout=1)
                # Another broker on the same port would answer too.
                if cluster.brokers and cluster.cluster_id == formatted_as:
                    probe = NewTopic("lapse-readiness", num_partitions=1, replication_factor=1)
                    admin.create_topics([probe], validate_only=True, request_timeout=2)[probe.topic].result(3)
                    return
            except (KafkaException, TimeoutError) as error:
                pending = error
            time.sleep(0.05)
        raise BrokerFailed(
            f"The embedded broker does not answer after {self._start_timeout_s:.0f} s ({pending}). "
            f"{self._log_tail(first_byte)}"
        )

    def _cluster_id(self) -> str:
        """Return the id that the data directory was formatted with."""
        lines = (self.data / "log" / "meta.properties").read_text(encoding="utf-8").splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))

    def _log_from(self, first_byte: int) -> str:
        """Return what the broker logged since `first_byte`."""
        with self.log.open("rb") as log:
            log.seek(first_byte)
            return log.read().decode(errors="replace")

    def _log_tail(self, first_byte: int) -> str:
        """Return the end of the log, for an error message."""
        lines = self._log_from(first_byte).strip().splitlines()[-15:]
        return f"Its log, {self.log}, ends with:\n" + "\n".join(lines)
