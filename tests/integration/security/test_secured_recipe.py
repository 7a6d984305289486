"""The recipe of docs/security.md, a broker with TLS, passwords and an authorizer, run as it stands (X4, X5)."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.embedded import class_archive
from lapse.embedded.java import find_java

PAGE = Path(__file__).parents[3] / "docs/security.md"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def programs(directory: Path) -> Path:
    """`lapse`, and `keytool` where the Java has no program of that name, in a directory for the path."""
    directory.mkdir()
    scripts = {"lapse": f'exec "{sys.executable}" -m lapse "$@"'}
    if shutil.which("keytool") is None:
        scripts["keytool"] = f'exec "{find_java().executable}" -m java.base/sun.security.tools.keytool.Main "$@"'
    for name, line in scripts.items():
        file = directory / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
    return directory


@pytest.mark.feature("X4", "X5")
def test_the_recipe_works_and_keeps_others_out(tmp_path: Path) -> None:
    section = PAGE.read_text("utf-8").split("\n## A broker with TLS, passwords and an authorizer, to try it\n")[1]
    (recipe,) = re.findall(r"^```sh\n(.*?)^```$", section.split("\n## ")[0], flags=re.MULTILINE | re.DOTALL)
    recipe = recipe.replace("9092", str(free_port())).replace("9094", str(free_port()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LAPSE_", "KAFKA_"))}
    for name in ("LAPSE_CACHE_DIR", "LAPSE_CHECKED_JARS", class_archive.VARIABLE):
        if name in os.environ:
            environment[name] = os.environ[name]
    environment["PATH"] = f"{programs(tmp_path / 'bin')}:{environment['PATH']}"
    place = tmp_path / "recipe"
    place.mkdir()
    more = """
until lapse queue depth orders --json | grep -q '"available": *1'; do
  sleep 0.5; tries=$((tries + 1)); test "$tries" -lt 40 || exit 3
done
echo "counted"
sed -i s/alices-password/another-password/ alice.properties
lapse queue depth orders && exit 4
echo "refused"
"""
    process = subprocess.Popen(
        ["sh", "-e", "-c", recipe + more],
        cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=240)
    finally:
        subprocess.run([str(tmp_path / "bin" / "lapse"), "kafka", "stop", "--data", "kafka"], cwd=place, check=False)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    log = place / "worker.log"
    logged = said + (log.read_text()[-3000:] if log.exists() else "")
    assert "counted" in said, logged
    assert "refused" in said, logged
    assert "no connection to Kafka" in said, logged
    assert "SASL authentication error" in said, logged
    assert "another-password" not in said
