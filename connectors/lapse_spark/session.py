"""The Spark session: on this machine with pinned connector jars, or the one that `spark-submit` has configured."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lapse_spark import java_names

_SECRETS: Final = "(?i)secret|password|passwd|token|access[.]?key|jaas"
_ASKS_FOR_JARS: Final = re.compile(r"--(packages|jars)\b|\bspark\.(jars|driver\.extraClassPath)\b")

_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Spark's pages are off, for which each plan would be written out at length.
    "spark.sql.ui.explainMode": "simple",
    # HotSpot never compiles a longer method. A reader's with all columns is 17,000 bytes long, in a piece.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
"""For a session in this process: nothing listens beyond this machine, nothing draws over our own progress."""


COMMAND_SETTINGS: Final = {
    # PySpark asks the JVM six times for each step of a plan, to note which line of ours it stands for.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""For a session in which only our commands work: a tenth of the CPU of a short one."""


DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta Lake asks for; Spark reads it once, when it starts."""


def session(
    name: str = "lapse",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    delta: bool = False,
) -> SparkSession:
    """Return the Spark session to work with, starting one where there is none.

    Under `spark-submit`, or with a master, jars or packages in the Spark configuration, those are taken as they are.
    Otherwise Spark runs in this process on all cores, with its Kafka and Avro connectors from our pinned jars (fetched
    on first use) and a Java that is found, or the packaged one.

    Args:
        name: of the application, as Spark's own pages show it.
        master: `local[2]`, `spark://…`, `yarn`; None = as configured, else all cores of this machine.
        config: further Spark settings; they win over ours.
        delta: whether it is to know Delta Lake, for an archive that is kept so. Its jars are fetched on first use;
            where they come from your own configuration, so must its two settings (`DELTA_SETTINGS`).

    Raises:
        lapse.embedded.EmbeddedError: no usable Java, or the jars cannot be fetched.
        ValueError: Delta Lake is asked for, and a session is running, or configured, that does not know it.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _knowing(running, delta)
    given = dict(config or {})
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.redaction.regex": _SECRETS,
        "spark.sql.redaction.options.regex": f"{_SECRETS}|url",
    }
    builder = SparkSession.Builder().appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        _find_java()
        chosen = master or given.get("spark.master") or _default("spark.master") or "local[*]"
        settings["spark.master"] = chosen
        if chosen.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= _LOCAL
            settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        if not _asks_for_jars(given):
            settings["spark.jars"] = ",".join(str(file) for file in _jars(delta))
            if delta:
                settings |= _for_delta(chosen)
    elif master:
        settings["spark.master"] = master
    for key, value in (settings | given).items():
        builder = builder.config(key, value)
    with nullcontext() if submitted or SparkContext._gateway is not None else _java_prints_to_stderr():
        started = builder.getOrCreate()
    if not submitted:
        started.sparkContext.setLogLevel("ERROR")
    java_names.remember(started)
    return _knowing(started, delta)


@contextmanager
def _java_prints_to_stderr() -> Iterator[None]:
    """Give the JVM that is started meanwhile our standard error for its output: Delta prints, and so do we, JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def knows_delta(spark: SparkSession) -> bool:
    """Whether a session can read and write tables of Delta Lake."""
    return all(ours in (spark.conf.get(key, "") or "") for key, ours in DELTA_SETTINGS.items())


def _knowing(spark: SparkSession, delta: bool) -> SparkSession:
    if delta and not knows_delta(spark):
        wanted = ", ".join(f"{key}={value}" for key, value in DELTA_SETTINGS.items())
        raise ValueError(
            "this Spark session does not know Delta Lake. Where lapse starts the session, the first call must be "
            f"session(delta=True); where you configure jars yourself, add Delta's for your Spark, and {wanted}"
        )
    return spark


def _for_delta(master: str) -> dict[str, str]:
    extensions = [_default("spark.sql.extensions"), DELTA_SETTINGS["spark.sql.extensions"]]
    settings = {**DELTA_SETTINGS, "spark.sql.extensions": ",".join(filter(None, extensions))}
    if master.startswith("local"):
        # Fifty tasks for each look at a table's log, and ten thousand for its files, are meant for a cluster.
        tasks = str(2 * (os.cpu_count() or 1))
        settings["spark.databricks.delta.snapshotPartitions"] = tasks
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = tasks
    return settings


def _jars(delta: bool) -> list[Path]:
    from lapse.embedded import jars  # on demand: under spark-submit neither the cache nor a downloader is needed

    return [file for name in (jars.SPARK, *([jars.DELTA] if delta else [])) for file in jars.jar_files(name)]


def _find_java() -> None:
    """Set JAVA_HOME for Spark's launcher, which looks nowhere else."""
    from lapse.embedded import java

    os.environ["JAVA_HOME"] = str(java.spark_java_home())


def _asks_for_jars(given: Mapping[str, str]) -> bool:
    """Whether the user's own configuration says where connectors come from."""
    if any(key in ("spark.jars", "spark.jars.packages") for key in given):
        return True
    if _ASKS_FOR_JARS.search(os.environ.get("PYSPARK_SUBMIT_ARGS", "")):
        return True
    return bool(_default("spark.jars") or _default("spark.jars.packages"))


def _default(key: str) -> str:
    """A setting from the user's `spark-defaults.conf`; empty where it says nothing."""
    directory = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    file = Path(directory) / "spark-defaults.conf"
    if not file.is_file():
        return ""
    for line in file.read_text("utf-8").splitlines():
        match = re.match(r"\s*([^#\s=]+)[\s=]+(.*?)\s*\Z", line)
        if match and match[1] == key:
            return match[2]
    return ""
