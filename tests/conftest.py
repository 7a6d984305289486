"""Fixtures of all tests: a real broker, names that nobody else uses, a Spark session.

A broker comes from, in this order: `KAFKA_BOOTSTRAP_SERVERS`; `--kafka=testcontainers`; the embedded one, started
once per pytest process when the first test asks for it. Where Java is missing, tests are skipped on a laptop and
fail when `CI` is set.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from support.suite import class_archives, scratch
from support.suite.at_length import examples, left_out
from support.suite.contract import promises, unknown_numbers
from support.suite.file_times import FileTimes, longest_first
from support.suite.grouping import SPARK, Grouped, group_of
from support.suite.rewritten import leave_out, write_share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lapse.embedded import EmbeddedKafka
    from support.kafka.secure import SecureKafka

leave_out("lapse")  # not in `pytest_configure`: the other conftest files, and what they import, come before it

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("lapse", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("lapse")

# Shells start background jobs with SIGINT ignored, and so would be every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).parent
_RINGS = ("integration", "acceptance")
_SCRATCH = pytest.StashKey[Path | None]()
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
_SHRINKING_S = 420
"""Hypothesis makes a failing example smaller for up to 300 s. A limit of 300 s would hide the example."""
_SPARK_S = 600
"""On two slow cores, a test with many small queries took 300 s. A limit that strikes within one spoils the session."""
_MANY_FILES = 400
"""The number of open files, among them the clients of Kafka that wait for the collector, from which it is called."""

_IDLE_BROKER = {
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "metadata.max.idle.interval.ms": "60000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "group.coordinator.threads": "1",
}
"""Settings of the shared broker, which nobody kills. It lives for a whole run, and idles with two thirds of the CPU."""

_GARBAGE_THRESHOLDS = (500_000, 20, 20)
"""Every seventh second of a unit test's CPU went into looking for garbage, with Python's own thresholds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        choices=("embedded", "testcontainers"),
        default="embedded",
        help="where the broker comes from when KAFKA_BOOTSTRAP_SERVERS is not set",
    )
    parser.addoption("--record-times", action="store_true", help="write how long each file takes to tests/times.toml")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FileTimes())
    if config.getoption("dist", "no") == "no":  # who distributes the tests collects none
        gc.disable()  # until the tests are collected: nothing of them is garbage, and looking takes a fifth of that
    if hasattr(config, "workerinput"):
        # Registered first, so run last: to take millions of objects apart for a process that ends costs seconds of CPU.
        atexit.register(os._exit, 0)
        write_share(config, int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"])
    class_archives.use(os.environ)
    config.stash[_SCRATCH] = scratch.use(os.environ)


@cache
def _ring_of(file: Path) -> str:
    return file.relative_to(_HERE).parts[0] if file.is_relative_to(_HERE) else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if faults := unknown_numbers(items, promises()):
        raise pytest.UsageError("\n".join(faults))
    if unwanted := [item for item in items if left_out(item)]:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if not left_out(item)]
    groups: list[str] = []
    for item in items:
        ring = _ring_of(item.path)
        if ring in _RINGS:
            item.add_marker(ring)
        groups.append(group_of(item.path))
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(_SHRINKING_S))
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_SPARK_S))
            if groups[-1] not in SPARK:
                raise pytest.UsageError(f"{item.nodeid} has the session of Spark by another fixture: take `spark` too")
    if hasattr(config, "workerinput"):  # one of several processes: what is long must not come last
        longest_first(items, groups, config.rootpath)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Seven thousand tests are no garbage: the collector need not look through them again and again, nor once."""
    gc.freeze()
    # Else libraries take at the end what the collector may not look at for leaks, and print pages of it. Until then
    # pytest itself looks for garbage twice.
    atexit.register(gc.unfreeze)
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    gc.enable()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a parallel run a process reports each passed test once, with its whole duration.

    Five messages cost more than most unit tests. What fails or is skipped is reported as ever.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    own = next((report for report in reports if report.when == "call"), None)
    shown = [report for report in reports if report is own or not report.passed]
    if own is not None:
        own.duration += sum(report.duration for report in reports if report not in shown)
    for report in shown:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let go of what a file leaves: each client of Kafka in a cycle has threads that go on asking for its broker.

    And of each test's frames: Spark keeps their plans as long as Python does, and soon looks for memory all the time.
    """
    last_of_file = nextitem is None or nextitem.path != item.path
    has_clients = not item.path.is_relative_to(_HERE / "unit")
    if item.get_closest_marker("spark") or (has_clients and (last_of_file or _has_many_open())):
        gc.collect()


def _has_many_open() -> bool:
    return sum(1 for _ in Path("/dev/fd").iterdir()) > _MANY_FILES


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take what lived in memory away, unless somebody may want to see why a test failed."""
    if (own := session.config.stash.get(_SCRATCH, None)) and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(own, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Grouped | None:
    return Grouped(config, log) if config.getoption("dist") == "loadfile" else None


def _absent(what: str) -> NoReturn:
    """Skip where something that should be installed is missing; fail where everything must be there."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap servers of a broker that the whole run shares; do not stop or kill it."""
    from lapse.embedded import JarUnavailable, JavaMissing
    from lapse.embedded.broker import given_broker
    from support.kafka.container import NoDocker, kafka_container
    from support.kafka.prepared import PreparedKafka

    servers = given_broker()
    with ExitStack() as running:
        try:
            if servers is None and request.config.getoption("--kafka") == "testcontainers":
                servers = running.enter_context(kafka_container())
            elif servers is None:
                own = running.enter_context(PreparedKafka(heap_mb=768, properties=_IDLE_BROKER))
                servers = own.bootstrap_servers
        except (JavaMissing, JarUnavailable, NoDocker) as error:
            _absent(str(error))
        yield servers


@contextmanager
def _started_for_itself() -> Iterator["EmbeddedKafka"]:
    from lapse.embedded import EmbeddedKafka, JarUnavailable, JavaMissing

    own = EmbeddedKafka()
    try:
        own.start()
        yield own
    except (JavaMissing, JarUnavailable) as error:
        _absent(str(error))
    finally:
        own.close()


@pytest.fixture
def own_kafka() -> Iterator["EmbeddedKafka"]:
    """A broker of this test's own, already started, to be killed, paused and restarted at will."""
    with _started_for_itself() as own:
        yield own


@pytest.fixture(scope="module")
def module_kafka() -> Iterator["EmbeddedKafka"]:
    """A broker of this file's own, as `own_kafka`. Each test leaves it running."""
    with _started_for_itself() as own:
        yield own


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SecureKafka"]:
    """A broker with TLS and passwords, that the tests of a file share (X5)."""
    from lapse.embedded import JarUnavailable, JavaMissing
    from support.kafka.secure import secure_kafka

    with ExitStack() as running:
        try:
            found = running.enter_context(secure_kafka(tmp_path_factory.mktemp("secure")))
        except (JavaMissing, JarUnavailable) as error:
            _absent(str(error))
        yield found


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes a name that no other test, process or earlier run has used: `unique("orders")`."""
    token = uuid.uuid4().hex[:10]

    def name(stem: str) -> str:
        return f"{stem}-{token}"

    return name


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topic and group names of one test, ending in a dash."""
    return f"t{uuid.uuid4().hex[:10]}-"


@pytest.fixture
def create_topic(kafka: str) -> Iterator[Callable[..., str]]:
    """Creates a topic on the shared broker and returns its name: `create_topic("orders-1", partitions=4)`.

    The topic is deleted some time after the test.
    """
    from confluent_kafka.admin import AdminClient

    from lapse.topic_creation import NewTopic
    from support.kafka import created_topic, left_topics

    left_topics.delete(kafka)
    admin, made = AdminClient({"bootstrap.servers": kafka}), list[str]()

    def create(name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        made.append(name)
        created_topic.create(admin, NewTopic(name, partitions, 1, config=dict(config or {})))
        return name

    yield create
    left_topics.leave(kafka, made)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A Spark session on two local cores, with Kafka, Avro and Delta; about 6 s once per process."""
    from pyspark import SparkContext

    from lapse.embedded import JarUnavailable, JavaMissing
    from lapse_spark.session import COMMAND_SETTINGS, session
    from support.programs.standalone import QUICK as QUICK_JAVA

    if SparkContext._gateway is not None:
        # Jars are put on the class path when the JVM starts, so the first session decides for all.
        pytest.fail("A test has started a Spark session of its own in this process; let it take the fixture `spark`.")
    scratch = tmp_path_factory.mktemp("spark")
    options = f"{QUICK_JAVA} -Dderby.system.home={scratch}"
    config = {
        **COMMAND_SETTINGS,
        # Topics and frames have several partitions; what is shuffled into several is for the jobs that are processes.
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",  # tables of some rows: each look at a log is one task
        "spark.databricks.delta.stats.collect": "false",  # the least and the most of each column, of each file
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        "spark.sql.ui.retainedExecutions": "1",  # for pages that are off; a plan each
        "spark.ui.retainedJobs": "1",
        "spark.ui.retainedStages": "1",
        "spark.sql.constraintPropagation.enabled": "false",  # conditions that follow from others, to read fewer rows
        "spark.sql.adaptive.enabled": "false",  # plans again after each stage, to gain on data that is not here
        # To compile each plan costs more than to interpret it for some rows. The job on a cluster compiles its plans,
        # and so does the test of expressions.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Rows of a test would be computed while the plan is made; those of Kafka are not.
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
        # Each file of a checkpoint is renamed. Spark's own choice starts two processes (readlink) for that.
        "spark.sql.streaming.checkpointFileManagerClass": _BY_FILE_SYSTEM,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": options,
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        try:
            started = session("lapse tests", master="local[2]", config=config, delta=True)
        except (JavaMissing, JarUnavailable) as error:
            _absent(str(error))
        _forget_defaults(started)
        for form in ("callSite.short", "callSite.long"):  # else Spark searches its stack for our line at each step
            started.sparkContext.setLocalProperty(form, "a test")
        yield started
        started.stop()


def _forget_defaults(spark: "SparkSession") -> None:
    """Leave out of Hadoop's settings the thousand that are as its code has them anyway.

    Spark compresses each setting for itself, in each job that reads or writes a file: 14 ms of CPU.
    """
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    spark._jvm.org.apache.hadoop.mapred.JobConf(False)  # as this class is loaded, Hadoop reads all defaults once more
    hadoop.clear()
    # Those that the code does not have: Delta's log needs the first, and Spark itself sets the second.
    hadoop.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.LocalFs")
    hadoop.set("mapreduce.fileoutputcommitter.algorithm.version", "1")
