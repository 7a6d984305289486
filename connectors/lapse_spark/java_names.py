"""Caches Java classes and methods that py4j has looked up by name.

By default each use of a function of Spark looks its name up in the JVM again. For a short name, such as `functions`,
Java searches some hundred jars before the imports. A ledger needs some thousand lookups, a tenth of its CPU. The
meaning of a name never changes, so one lookup is enough.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark.sql import SparkSession


class _Class(JavaClass):
    """A Java class that caches its methods."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


class _Names(JVMView):
    """A view of the JVM that caches classes."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if type(found) is JavaClass:
            found.__class__ = _Class
            self.__dict__[name] = found
        return found


def remember(spark: SparkSession) -> None:
    """Make a session look up each Java class and method only once."""
    view = spark.sparkContext._jvm
    if type(view) is JVMView:
        view.__class__ = _Names
