"""The jobs as the documentation says to run them: on a cluster, by `spark-submit`, and in five lines of plain Spark."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.core.reason import Reason
from lapse.embedded import jars, java
from lapse.protocol import topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import EventKind
from support.kafka.wire import Wire
from support.programs.program import program, run
from support.programs.standalone import QUICK, SPARK_HOME, quick_executors, standalone

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")


@pytest.fixture
def queue(kafka, unique, create_topic):
    """A queue with 300 messages: 200 acknowledged, 60 dead, 40 queued."""
    name, wire = unique("q"), Wire(kafka)
    underlying = create_topic(unique("orders"), partitions=2)
    for own in (topic.events(name), topic.dead_letters(name)):
        create_topic(own, partitions=2)
    for partition in (0, 1):
        wire.records(underlying, [b"x"] * 150, partition=partition)
        wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, partition, 0, 99))
        dead = BookmarkRange(underlying, partition, 100, 129)
        where = topic.dead_letters(name)
        wire.event(name, EventKind.DEAD_LETTERED, dead, reasons=("time_limit",), dead_letter_topic=where)
        for bookmark in dead:
            wire.letter(name, bookmark, Reason.TIME_LIMIT)
    wire.flush()
    return name, underlying


def submitted(python: str, wheel: Path, **words: str) -> list[str]:
    """The `spark-submit` command of the documentation, with other words in places."""
    block = re.search(r"^    spark-submit (?:.+\\\n)*.+$", PAGE, re.MULTILINE)
    assert block is not None
    command = shlex.split(block[0].replace("\\\n", " "))
    assert command[0] == "spark-submit"
    command[0] = str(SPARK_HOME / "bin" / "spark-submit")
    # The same connectors, from the pinned jars instead of the network.
    packages = command.index("--packages")
    assert set(command[packages + 1].split(",")) <= {coordinates(file) for file in jars.jar_files(jars.SPARK)}
    command[packages : packages + 2] = ["--jars", ",".join(str(file) for file in jars.jar_files(jars.SPARK))]
    assert wheel.match(Path(command[command.index("--py-files") + 1]).name)
    command[command.index("--py-files") + 1] = str(wheel)
    for option, word in words.items():
        command[command.index(f"--{option.replace('_', '-')}") + 1] = word
    return command


def coordinates(jar: Path) -> str:
    name, _, version = jar.stem.rpartition("-")
    return f"org.apache.spark:{name}:{version}"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)  # five JVMs start; half a minute on two quiet cores
@pytest.mark.feature("D3", "D4")
def test_spark_submit_on_a_cluster_of_two_executors(kafka, queue, tmp_path):
    name, underlying = queue
    build = [program("uv"), "build", "--wheel", "--quiet", "--no-build-isolation", "--python", sys.executable]
    run(*build, "--out-dir", tmp_path, ROOT)
    wheel = next(tmp_path.glob("*.whl"))
    entry = re.search(r"`(from lapse_spark\.entry import start; start\(\"ledger\"\))`", PAGE)
    assert entry is not None
    script = tmp_path / "ledger.py"
    found = tmp_path / "found"
    script.write_text(f"import lapse_spark\nopen({str(found)!r}, 'w').write(lapse_spark.__file__)\n{entry[1]}\n")
    log, home = tmp_path / "log", java.spark_java_home()
    log.mkdir()
    with standalone(tmp_path, home) as master:
        command = submitted(
            sys.executable, wheel, master=master, queue=name, topics=underlying, bootstrap_servers=kafka
        )
        at = command.index("ledger.py")
        command[at] = str(script)
        settings = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": quick_executors(),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": log.as_uri(),
        }
        command[at:at] = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        environment = {**os.environ, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK_HOME)}
        done = subprocess.run(
            [*command, "--json"], env=environment, capture_output=True, text=True, timeout=540, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    logged = json.loads(done.stdout)
    assert (logged["balanced"], logged["published"], logged["still_queued"]) == (True, 300, 40)
    assert (logged["fates"]["acknowledged"], logged["dead_lettered"]) == (200, {"time_limit": 60})
    events = [json.loads(line) for file in log.rglob("events_*") for line in file.read_text().splitlines()]
    worked = {event["Task Info"]["Executor ID"] for event in events if event["Event"] == "SparkListenerTaskEnd"}
    assert worked == {"0", "1"}
    # The driver took lapse from the wheel, and no executor has started Python.
    assert found.read_text().startswith(str(wheel))
    executors = [file.read_text() for file in tmp_path.glob("work/**/stderr")]
    assert len(executors) == 2
    assert not any("pyspark.daemon" in logged for logged in executors)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.feature("D2")
def test_the_first_lines_of_the_documentation(spark, kafka, queue, number):
    name, _ = queue
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    names = {"spark": spark}
    # Other tests' letters are on this broker, too, and some have a header twice.
    exec(code.replace("localhost:9092", kafka).replace("dlq[.].*", f"dlq[.]{name}"), names)
    rows = names["letters"].where(f"entity = '{name}'").groupBy("reasons").count().collect()
    assert [(str(row["reasons"]), row["count"]) for row in rows] in ([("time_limit", 60)], [("['time_limit']", 60)])
    if number:
        for more in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[2:]:
            exec(more, names)
        assert names["stream"].isStreaming
        assert "flight" in names["flight"].columns
