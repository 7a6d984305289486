"""Downloads of pinned jars through `jgo`, a Maven resolver in pure Python that knows the public repository.

`LAPSE_MAVEN_REPOSITORY` names another repository, for networks with a mirror of their own.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from lapse.embedded.errors import JarCorrupt, JarUnavailable
from lapse.embedded.jar import Jar, place

_ATTEMPTS = 4
_TIMEOUT_S = 30
_THREADS = 8


class Bytes(Protocol):
    """Called with the number of bytes that have arrived since the last call; a negative number takes some back."""

    def __call__(self, count: int, /) -> None:
        """Note `count` more bytes."""


class Source(Protocol):
    """Fetches one jar."""

    def __call__(self, jar: Jar, directory: Path, arrived: Bytes, /) -> Path:
        """Fetch `jar` into `directory` and return the file; raise `OSError` or `RuntimeError` if that fails."""


def download(jars: Sequence[Jar], store: Path, *, title: str, source: Source | None = None) -> None:
    """Fetch `jars` into `store`, several at a time, with a progress bar on standard error.

    Raises:
        JarUnavailable: A jar could not be fetched in four attempts.
        JarCorrupt: What was fetched is not the pinned file.
    """
    fetch = source or from_maven
    store.mkdir(parents=True, exist_ok=True)
    # A directory of this run only, so that leftovers of a killed run are never taken for a jar.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=store) as scratch, _bar(jars, title) as arrived:

        def one(jar: Jar) -> None:
            _fetch(jar, Path(scratch), store, fetch, arrived)

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="jars") as pool:
            waiting = [pool.submit(one, jar) for jar in jars]
            try:
                for done in waiting:
                    done.result()
            finally:
                for done in waiting:
                    done.cancel()


def from_maven(jar: Jar, directory: Path, arrived: Bytes) -> Path:
    """Fetch `jar` with jgo, from the public Maven repository or the one in `LAPSE_MAVEN_REPOSITORY`.

    Raises:
        JarUnavailable: jgo is not installed.
        OSError: The repository cannot be reached (`requests` derives its errors from it).
        RuntimeError: The repository does not have the file.
    """
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise JarUnavailable(
            f"{jar.coordinate} is not in the cache, and jgo, which downloads it, is not installed. "
            "Install it with: pip install 'lapse[worker]'"
        ) from error

    @contextmanager
    def report_progress(_name: str, _size: int) -> Iterator[Bytes]:
        yield arrived

    mirror = os.environ.get("LAPSE_MAVEN_REPOSITORY")
    context = MavenContext(
        resolver=PythonResolver(progress_callback=report_progress),
        repo_cache=directory,
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=_TIMEOUT_S,
    )
    group, artifact, version = jar.coordinate.split(":")
    # `download`, not `resolve`, which would search other directories first.
    file = context.resolver.download(context.project(group, artifact).at_version(version).artifact())
    if file is None:
        raise RuntimeError("the repository does not have it")
    return Path(file)


def _fetch(jar: Jar, scratch: Path, store: Path, fetch: Source, arrived: Bytes) -> None:
    """Fetch one jar, with retries, and move it to its place."""
    fault: Exception | None = None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.5 * 2**attempt)
        directory = scratch / f"{jar.name}-{attempt}"
        counted = 0

        def count(more: int) -> None:
            nonlocal counted
            counted += more
            arrived(more)

        try:
            place(jar, fetch(jar, directory, count), store)
        except (OSError, RuntimeError, JarCorrupt) as error:
            fault = error
            arrived(-counted)
            shutil.rmtree(directory, ignore_errors=True)
        else:
            return
    if isinstance(fault, JarCorrupt):
        raise fault
    raise JarUnavailable(
        f"{jar.coordinate} could not be downloaded in {_ATTEMPTS} attempts: {fault}. Check the network; behind a proxy "
        f"set HTTPS_PROXY, with a mirror set LAPSE_MAVEN_REPOSITORY; or copy the file to {store / jar.path}."
    ) from fault


@contextmanager
def _bar(jars: Sequence[Jar], title: str) -> Iterator[Bytes]:
    """Show a progress bar on a terminal, and one line before and after elsewhere."""
    console = Console(stderr=True)
    total = sum(jar.size_bytes for jar in jars)
    if not console.is_terminal:
        console.print(f"Downloading {len(jars)} jars for {title}, {total / 1e6:.0f} MB ...", highlight=False)
        yield lambda _count: None
        console.print(f"Downloaded {len(jars)} jars for {title}.", highlight=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{title}: {len(jars)} jars", total=total)
        yield lambda count: progress.update(task, advance=count)
