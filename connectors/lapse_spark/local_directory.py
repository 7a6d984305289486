"""Checks of directories on this machine, before Spark starts, because that takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

SET_UP: Final = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
"""Environment variables with which a path without a scheme may be on another file system."""

_SIGNS: Final = ("_checkpoint/metadata", "*/day=*", "*/_delta_log")
"""Files of which the output of a streaming job has one, even if the job has found nothing."""

_OF_SPARK: Final = ("part-", ".part-", "_SUCCESS", "._SUCCESS", "_temporary", ".spark-staging")
"""Prefixes of the names that Spark gives to files and directories of an output."""


def check_written(path: str, config: Mapping[str, str] = {}, made_by: str = "monitor") -> None:
    """Check that a local directory has the output of a job.

    Args:
        path: the directory. It is not checked if it has a scheme, or Spark is set up for another file system.
        config: further Spark settings.
        made_by: name of the job that writes the directory.

    Raises:
        ValueError: the directory has no name or does not exist, or no job has written to it.
    """
    place = _local(path, config)
    if place is not None and not any(any(place.glob(sign)) for sign in _SIGNS):
        raise ValueError(f"{path}: no output of the {made_by}; run it first: lapse spark {made_by} {path}")


def check_replaceable(path: str, config: Mapping[str, str] = {}) -> None:
    """Check that a local directory has nothing but what Spark has written, because Spark deletes all that is in it.

    Args:
        path: the directory, which need not exist. It is not checked if it has a scheme, or Spark is set up for another
            file system.
        config: further Spark settings.

    Raises:
        ValueError: the path is a file or has no name, or the directory has files of others.
    """
    place = _local(path, config)
    if place is None or not place.exists():
        return
    if (foreign := next(_foreign(place), None)) is not None:
        raise ValueError(
            f"--output {path}: Spark would delete {foreign}, which it has not written. Give a new directory"
        )


def check_writable(path: str, config: Mapping[str, str] = {}) -> None:
    """Check that a local directory can be written to, or made.

    Args:
        path: the directory. It is not checked if it has a scheme, or Spark is set up for another file system.
        config: further Spark settings.

    Raises:
        ValueError: the directory has no name, a file is in the way, or this user may not write there.
    """
    place = _local(path, config)
    if place is not None:
        check_place(place, path)


def check_place(place: Path, path: str) -> None:
    """Check that a directory on this machine can be written to, or made.

    Args:
        place: the directory.
        path: the path that the user has given, for the error.

    Raises:
        ValueError: a file is in the way, or this user may not write there.
    """
    nearest = next(one for one in (place, *place.absolute().parents) if one.exists())
    if not nearest.is_dir():
        raise ValueError(f"{path}: {nearest} is a file. Give a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{path}: this user may not write to {nearest}. Give another directory, or have that changed")


def _foreign(place: Path) -> Iterator[Path]:
    """Yield what Spark has not written: the path itself, if it is a file, or what is in the directory."""
    if not place.is_dir():
        yield place
        return
    yield from (one for one in sorted(place.iterdir()) if not one.name.startswith(_OF_SPARK))


def check_named(path: str) -> None:
    """Check that a directory has a name: without one, as of a variable that is not set, jobs would use the root.

    Raises:
        ValueError: the path is empty, or the root of the file system.
    """
    if not path.removeprefix("file:").strip("/"):
        raise ValueError(f"{path!r} is no directory for an output. Give a directory of its own")


def _local(path: str, config: Mapping[str, str]) -> Path | None:
    """Return the place on this machine, or None if only Spark can see it."""
    check_named(path)
    elsewhere = "fs.defaultFS" in " ".join(config) or any(os.environ.get(name) for name in SET_UP)
    return None if "://" in path or elsewhere else Path(path.removeprefix("file:"))
