"""Checks what a worker and a local broker need of this machine: Java, packages, disk space, a free port."""

from __future__ import annotations

import http.client
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import confluent_kafka
import orjson

from lapse import __version__
from lapse.config import Config
from lapse.doctor.finding import Finding, fine, warning, wrong
from lapse.embedded.daemon import is_taken
from lapse.embedded.errors import JavaMissing
from lapse.embedded.java import find_java

_LEAST_FREE_BYTES: Final = 1 << 30

_ANSWERS_S: Final = 6.0
"""How long the worker may take to answer, s. A worker that hangs reports that itself after five seconds."""

_MOST_BYTES: Final = 1 << 20

_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^;\s]+)")
"""A requirement of one exact version."""


def check_machine(config: Config | None = None) -> list[Finding]:
    """Check this machine.

    Args:
        config: names the data directory of the worker, and the port of its figures; None = check neither.
    """
    found = [_check_python(), *_check_pins(), _check_java()]
    if config is not None:
        found += [_check_disk(Path(config.lapse.data_dir)), *_check_port(config)]
    return found


def _check_python() -> Finding:
    kafka, _ = confluent_kafka.libversion()
    return fine("versions", f"lapse {__version__}, Python {platform.python_version()}, librdkafka {kafka}")


def _check_pins() -> Iterator[Finding]:
    """Check packages whose private parts lapse uses, so that only the exact version works."""
    for text in metadata.requires("lapse") or ():
        pin = _PIN.match(text)
        if pin is None:
            continue
        name, wanted = pin.groups()
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # belongs to an extra that is not installed
        if installed != wanted:
            yield wrong("versions", f"{name} is {installed}", f"lapse needs {wanted}: pip install '{name}=={wanted}'")


def _check_java() -> Finding:
    try:
        java = find_java()
    except JavaMissing as error:
        return warning("Java", "there is none that runs a broker, or Spark, here", str(error))
    return fine("Java", f"{java.version}, {java.executable}")


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # a name that is too long
        return False


def _check_disk(data_dir: Path) -> Finding:
    place = data_dir.absolute()
    while not _exists(place):
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free for the worker's data ({data_dir})"
    if free < _LEAST_FREE_BYTES:
        return warning("disk", text, "Make room, or give another data_dir: state on disk and RocksDB need it")
    return fine("disk", text)


def _check_port(config: Config) -> Iterator[Finding]:
    port = config.lapse.metrics_port
    if not port or not is_taken(port):
        return
    facts = _worker_readiness(port)
    if not isinstance(facts, dict) or "ready" not in facts:
        text = f"port {port}, where the worker's figures are to be served, is another program's"
        yield warning("ports", text, "End that program, or give another metrics_port")
    elif facts["ready"] is True:
        yield fine("ports", f"a worker shows its figures at port {port}, and is ready")
    else:
        yield warning("ports", f"the worker at port {port} is not ready: {facts.get('why')}", "Its log says more")


def _worker_readiness(port: int) -> object:
    """Return the readiness of the worker at a local port; None if no worker answers there."""
    request = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWERS_S)
    try:
        request.request("GET", "/ready")
        return orjson.loads(request.getresponse().read(_MOST_BYTES))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        request.close()
