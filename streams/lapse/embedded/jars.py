"""Jars by pin: each has a size and a sha256 in a pin file, and no other jar is ever put on a class path.

A pin file has one line per jar: sha256, size in bytes, path in a Maven repository. A jar is looked for in our cache,
then in Maven's local repository, and then downloaded by `lapse.embedded.download`. The sha256 is checked when a jar
enters our cache, and once in each tree of processes that uses it. So a process that can write to the cache cannot put
its classes into a broker that is started later. The processes of a tree share the result in an environment variable, so
that a run of a thousand tests checks the jars once.
"""

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from lapse.embedded.cache import cache_dir, locked
from lapse.embedded.errors import EmbeddedError, JarCorrupt
from lapse.embedded.jar import Jar, place

KAFKA = "kafka-4.3.0"
"""The broker: all jars that it needs at run time, and a log4j binding."""

SPARK = "spark-4.0.0"
"""Spark's Kafka and Avro connectors, for PySpark 4.0.0."""

DELTA = "delta-4.0.0"
"""Delta Lake for Spark 4.0.0. Its other requirements are among PySpark's own jars."""

_PINS = Path(__file__).parent / "pins"

_CHECKED = "LAPSE_CHECKED_JARS"
"""Sets whose contents were checked in this tree of processes, each with its cache, one per line."""

logger = logging.getLogger(__name__)


def pins(name: str) -> list[Jar]:
    """Read the pin file `name` (`KAFKA`, `SPARK` or `DELTA`).

    Raises:
        EmbeddedError: There is no such pin file, or a line of it does not have three fields.
    """
    file = _PINS / f"{name}.sha256"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in _PINS.glob("*.sha256")))
        raise EmbeddedError(f"There is no set of jars named {name!r}; there are: {known}.")
    jars = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 3 or not fields[1].isdecimal() or len(fields[0]) != 64:
            raise EmbeddedError(f"{file}, line {number}: expected sha256, size and path, found {line!r}.")
        jars.append(Jar(PurePosixPath(fields[2]), int(fields[1]), fields[0]))
    return jars


def jar_files(name: str) -> list[Path]:
    """Return the files of the set `name`, and fetch missing ones. Several processes may call this at the same time.

    Raises:
        JarUnavailable: A jar could not be downloaded.
        JarCorrupt: A download was not the pinned file.
        EmbeddedError: The set or the cache cannot be used.
    """
    wanted = pins(name)
    store = cache_dir() / "jars"
    files = [store / jar.path for jar in wanted]
    mark = f"{name} {store}"
    checked = os.environ.get(_CHECKED, "").splitlines()
    if not list(_missing(wanted, store)) and (mark in checked or all(map(_is_right, wanted, files))):
        _note(mark, checked)
        return files
    try:
        with locked(store / ".lock"):
            _throw_out_others(wanted, store)
            for jar in list(_missing(wanted, store)):
                _adopt(jar, store)
            if absent := list(_missing(wanted, store)):
                # Imported only if needed: with a full cache no downloader is needed.
                from lapse.embedded.download import download

                download(absent, store, title=name)
    except OSError as error:
        raise EmbeddedError(
            f"The jar cache {store} cannot be written: {error}. Free some space, or name another directory in "
            "LAPSE_CACHE_DIR."
        ) from error
    _note(mark, checked)
    return files


def _note(mark: str, checked: Iterable[str]) -> None:
    """Note for this process, and those that it will start, that a set was checked."""
    os.environ[_CHECKED] = "\n".join([*(one for one in checked if one != mark), mark])


def _is_right(jar: Jar, file: Path) -> bool:
    try:
        jar.verify(file)
    except JarCorrupt:
        return False
    return True


def _throw_out_others(wanted: Iterable[Jar], store: Path) -> None:
    """Delete cached files that are not the pinned ones, so that they are fetched again."""
    for jar in wanted:
        file = store / jar.path
        if not file.is_file():
            continue
        try:
            jar.verify(file)
        except JarCorrupt as error:
            logger.warning("%s It is removed, and downloaded again.", str(error).split(" Delete it", maxsplit=1)[0])
            file.unlink()


def _missing(wanted: Iterable[Jar], store: Path) -> Iterable[Jar]:
    """Yield the jars whose file is absent, or of the wrong size."""
    for jar in wanted:
        file = store / jar.path
        if not file.is_file() or file.stat().st_size != jar.size_bytes:
            yield jar


def _adopt(jar: Jar, store: Path) -> None:
    """Copy `jar` from Maven's local repository if it is there; ignore a wrong or incomplete file."""
    local = Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository") / jar.path
    if not local.is_file():
        return
    part = store / f"{jar.name}.part"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, part)
        place(jar, part, store)
    except (JarCorrupt, OSError):
        part.unlink(missing_ok=True)
