"""Names of Java that Python has asked for before.

Each use of a function of Spark's asks the JVM anew what its name is. For a short one, such as `functions`, Java looks
through some hundred jars, as no package has it, before it looks among what is imported. A ledger asks some thousand
times: a tenth of its CPU. What a name means never changes, so it is asked once.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark.sql import SparkSession


class _Class(JavaClass):
    """A class that knows the methods it was asked for."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


class _Names(JVMView):
    """What the JVM has, with the classes it was asked for."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if type(found) is JavaClass:
            found.__class__ = _Class
            self.__dict__[name] = found
        return found


def remember(spark: SparkSession) -> None:
    """Have a session's Python ask for each class, and each of its methods, once."""
    view = spark.sparkContext._jvm
    if type(view) is JVMView:
        view.__class__ = _Names
