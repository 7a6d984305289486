"""The Spark session: on this machine with pinned connector jars, or the one that `spark-submit` has configured."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

_SECRETS: Final = "(?i)secret|password|passwd|token|access[.]?key|jaas"
_ASKS_FOR_JARS: Final = re.compile(r"--(packages|jars)\b|\bspark\.(jars|driver\.extraClassPath)\b")

_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""For a session in this process: nothing listens beyond this machine, nothing draws over our own progress."""


def session(name: str = "lapse", *, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """Return the Spark session to work with, starting one where there is none.

    Under `spark-submit`, or with a master, jars or packages in the Spark configuration, those are taken as they are.
    Otherwise Spark runs in this process on all cores, with its Kafka and Avro connectors from our pinned jars (fetched
    on first use) and a Java that is found, or the packaged one.

    Args:
        name: of the application, as Spark's own pages show it.
        master: `local[2]`, `spark://…`, `yarn`; None = as configured, else all cores of this machine.
        config: further Spark settings; they win over ours.

    Raises:
        lapse.embedded.EmbeddedError: no usable Java, or the jars cannot be fetched.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
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
            settings["spark.jars"] = ",".join(str(file) for file in _jars())
    elif master:
        settings["spark.master"] = master
    for key, value in (settings | given).items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    if not submitted:
        started.sparkContext.setLogLevel("ERROR")
    return started


def _jars() -> list[Path]:
    from lapse.embedded import jars  # on demand: under spark-submit neither the cache nor a downloader is needed

    return jars.jar_files(jars.SPARK)


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
