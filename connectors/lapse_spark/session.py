"""The Spark session: on this machine with pinned connector jars, or the one that `spark-submit` has configured."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from lapse_spark import java_names, jvm

_SECRETS: Final = "(?i)secret|password|passwd|token|access[.]?key|jaas"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_LOG_VARIABLE: Final = "LOG4J_CONFIGURATION_FILE"
_ASKS_FOR_JARS: Final = re.compile(r"--(packages|jars)\b|\bspark\.(jars|driver\.extraClassPath)\b")

_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Spark's web pages are off, so plans need not be written out at length for them.
    "spark.sql.ui.explainMode": "simple",
    # HotSpot does not compile longer methods. A reader's method with all columns would have 17,000 bytes.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
"""Settings for a session in this process: no port is open to other machines, and Spark shows no progress."""


_DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"

_STACK: Final = "-Xss4m"
"""Java's stack for a thread, which has 1 MiB by default. Spark needs more than half of that to parse the tallest
allowed expression, and fails if the stack is too small."""

AVRO_LIMITS: Final = {"string": 1 << 24, "bytes": 1 << 24, "collectionItems": 1 << 20}
"""The greatest lengths that Avro believes. A damaged event may state two billion, and Java would make room for them."""


COMMAND_SETTINGS: Final = {
    # Else PySpark calls the JVM six times for each step of a plan, to record our line of code.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Of a repeated key in JSON the last one counts, as in the client.
    "spark.sql.variant.allowDuplicateKeys": "true",
}
"""Settings for a session of our commands only. They save a tenth of the CPU of a short one."""


_OF_ALL: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"{_SECRETS}|url",
}
"""The settings of every session."""

DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""The settings that Delta Lake needs. Spark reads them only when it starts."""


def session(
    name: str = "lapse",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    delta: bool = False,
) -> SparkSession:
    """Return the Spark session, and start one if there is none.

    Under `spark-submit`, or with a master, jars or packages in the Spark configuration, these are used unchanged.
    Otherwise Spark runs in this process on all cores. Its Kafka and Avro connectors come from our pinned jars, fetched
    at first use, and its Java from this machine or the package.

    Args:
        name: name of the application, as Spark's own pages show it.
        master: `local[2]`, `spark://…`, `yarn`; None = as configured, else all cores of this machine.
        config: further Spark settings, which take precedence over ours.
        delta: whether the session must know Delta Lake, for an archive in that format. Its jars are fetched at first
            use. If your own configuration has the jars, it must also have the two `DELTA_SETTINGS`.

    Raises:
        lapse.embedded.EmbeddedError: there is no usable Java, or the jars cannot be fetched.
        ValueError: `delta` is set, but the running or configured session does not know Delta Lake.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _knowing(running, delta)
    given = dict(config or {})
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = _OF_ALL | _of_start(given, master, delta=delta, submitted=submitted)
    builder = SparkSession.Builder().appName(name)
    for key, value in (settings | given).items():
        builder = builder.config(key, value)
    with nullcontext() if submitted or jvm.is_running() else _java_starts_quietly(given):
        started = builder.getOrCreate()
    if not submitted:
        started.sparkContext.setLogLevel("ERROR")
    java_names.remember(started)
    for what, most in AVRO_LIMITS.items():
        jvm.set_property_unless_set(started, f"org.apache.avro.limits.{what}.maxLength", str(most))
    return _knowing(started, delta)


def _of_start(given: dict[str, str], master: str | None, *, delta: bool, submitted: bool) -> dict[str, str]:
    """Return the settings with which a session starts here, or as configured. Those that are given may get more.

    Args:
        given: further Spark settings.
        master: Spark's master; None = as configured, else all cores of this machine.
        delta: whether the session must know Delta Lake.
        submitted: whether `spark-submit` has started the JVM.
    """
    if submitted:
        return {"spark.master": master} if master else {}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _find_java()
    chosen = master or given.get("spark.master") or _default("spark.master") or "local[*]"
    settings = {"spark.master": chosen}
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        given[_DRIVER_OPTIONS] = with_stack(given.get(_DRIVER_OPTIONS) or _default(_DRIVER_OPTIONS))
    if not _asks_for_jars(given):
        settings["spark.jars"] = ",".join(str(file) for file in _jars(delta))
        if delta:
            settings |= _for_delta(chosen)
    return settings


@contextmanager
def _java_starts_quietly(given: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM that starts in the block print to standard error, because Delta prints, and we print JSON.

    It logs as `log4j2.properties` here says, unless the user has settings of their own: Spark's take four lines to say
    that it logs nothing.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    ours = _LOG_VARIABLE not in os.environ and not _has_log_settings(given)
    if ours:
        os.environ[_LOG_VARIABLE] = str(_LOG_SETTINGS)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        if ours:
            del os.environ[_LOG_VARIABLE]


def with_stack(options: str) -> str:
    """Return Java's options with room for deep plans, unless they say how large the stack is."""
    return options if "-Xss" in options else f"{options} {_STACK}".strip()


def _has_log_settings(given: Mapping[str, str]) -> bool:
    """Return whether the user's own configuration says how Spark logs."""
    options = (given.get(_DRIVER_OPTIONS, ""), _default(_DRIVER_OPTIONS), os.environ.get("SPARK_SUBMIT_OPTS", ""))
    return any("log4j" in one for one in options) or any(
        one.suffix != ".template" for one in _conf_directory().glob("log4j2*.*")
    )


def knows_delta(spark: SparkSession) -> bool:
    """Return whether a session can read and write Delta tables."""
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
        # The defaults, fifty tasks per read of a table's log and ten thousand for its files, suit a cluster.
        tasks = str(2 * (os.cpu_count() or 1))
        settings["spark.databricks.delta.snapshotPartitions"] = tasks
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = tasks
    return settings


def _jars(delta: bool) -> list[Path]:
    from lapse.embedded import jars  # imported here: under spark-submit neither cache nor downloader is needed

    return [file for name in (jars.SPARK, *([jars.DELTA] if delta else [])) for file in jars.jar_files(name)]


def _find_java() -> None:
    """Set JAVA_HOME, because Spark's launcher looks for Java only there."""
    from lapse.embedded import java

    os.environ["JAVA_HOME"] = str(java.spark_java_home())


def _asks_for_jars(given: Mapping[str, str]) -> bool:
    """Return whether the user's own configuration names the connectors."""
    if any(key in ("spark.jars", "spark.jars.packages") for key in given):
        return True
    if _ASKS_FOR_JARS.search(os.environ.get("PYSPARK_SUBMIT_ARGS", "")):
        return True
    return bool(_default("spark.jars") or _default("spark.jars.packages"))


def _conf_directory() -> Path:
    """Return the directory of the user's own configuration of Spark, which need not exist."""
    return Path(os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf")


def _default(key: str) -> str:
    """Return a setting from the user's `spark-defaults.conf`; empty if it is missing."""
    file = _conf_directory() / "spark-defaults.conf"
    if not file.is_file():
        return ""
    for line in file.read_text("utf-8").splitlines():
        match = re.match(r"\s*([^#\s=]+)[\s=]+(.*?)\s*\Z", line)
        if match and match[1] == key:
            return match[2]
    return ""
