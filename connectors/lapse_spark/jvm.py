"""The Java side of Spark. PySpark has no public names for it, so only this module uses its private ones."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession


def is_running() -> bool:
    """Return whether this process has a JVM already."""
    return SparkContext._gateway is not None


def view(spark: SparkSession) -> Any:
    """Return what leads to Java's packages by their names."""
    return spark.sparkContext._jvm


def hadoop_settings(spark: SparkSession) -> Any:
    """Return a copy of Hadoop's settings, as the session has them."""
    session: Any = spark._jsparkSession
    return session.sessionState().newHadoopConf()


def has_checksum_files(spark: SparkSession, system: Any) -> bool:
    """Return whether a file system of Hadoop keeps checksums in files of their own, like that of this machine."""
    return bool(view(spark).java.lang.Class.forName("org.apache.hadoop.fs.ChecksumFileSystem").isInstance(system))


def pattern_fault(spark: SparkSession, pattern: str) -> str:
    """Return why Java cannot read a regular expression; empty if it can."""
    try:
        view(spark).java.util.regex.Pattern.compile(pattern)
    except IllegalArgumentException as error:
        return str(error).partition("\n")[0]
    return ""


def matches(spark: SparkSession, pattern: str, text: str) -> bool:
    """Return whether a regular expression of Java matches a whole text."""
    return bool(view(spark).java.util.regex.Pattern.matches(pattern, text))


def set_property_unless_set(spark: SparkSession, name: str, value: str) -> None:
    """Set a system property of the driver's JVM, unless it is set."""
    system = view(spark).java.lang.System
    if system.getProperty(name) is None:
        system.setProperty(name, value)
