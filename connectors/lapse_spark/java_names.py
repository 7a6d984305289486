"""Caches Java packages, classes and methods that py4j has looked up by name.

By default each use of a function of Spark looks its name up in the JVM again. For a short name, such as `functions`,
Java searches some hundred jars before the imports. It does so for each part of a full name, too: for each
error of Java PySpark asks `py4j.reflection.TypeUtil` several times of what kind it is. A ledger needs some thousand
lookups, a tenth of its CPU. The meaning of a name never changes, so one lookup is enough.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from pyspark.sql import SparkSession

from lapse_spark import jvm


class _Class(JavaClass):
    """A Java class that caches its methods."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def _cache(holder: JVMView | JavaPackage, name: str, found: Any) -> Any:
    """Keep a class or package in the view or package that it was found in.

    py4j takes each unknown name for a package. A name with a capital letter is probably a class that an import will
    make known later, so it is not kept.
    """
    if type(found) is JavaClass:
        found.__class__ = _Class
    elif type(found) is JavaPackage and name.islower():
        found.__class__ = _Package
    else:
        return found
    holder.__dict__[name] = found
    return found


class _Package(JavaPackage):
    """A Java package that caches its packages and classes."""

    def __getattr__(self, name: str) -> Any:
        return _cache(self, name, super().__getattr__(name))


class _Names(JVMView):
    """A view of the JVM that caches classes and packages."""

    def __getattr__(self, name: str) -> Any:
        return _cache(self, name, super().__getattr__(name))


def remember(spark: SparkSession) -> None:
    """Make a session look up each Java package, class and method only once."""
    names = jvm.view(spark)
    if type(names) is JVMView:
        names.__class__ = _Names
