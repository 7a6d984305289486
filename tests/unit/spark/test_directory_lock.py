"""The lock of a job's directory: it keeps a second run away, and ends with the process that holds it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click import ClickException
from click.testing import CliRunner

from lapse_client.error import LapseError
from lapse_spark.connection import Connection
from lapse_spark.letters import archive
from lapse_spark.monitoring import alert, monitor
from lapse_spark.monitoring.upkeep import compact
from lapse_spark.running import running_ledger
from lapse_spark.running.intake import Followed
from lapse_spark.stream.directory_lock import FILE, locked
from lapse_spark.stream.output import Output

pytestmark = [pytest.mark.spark, pytest.mark.feature("C58")]

NOWHERE = Connection("127.0.0.1:1")

_HOLDER = """
import signal, sys
from pathlib import Path
from types import SimpleNamespace
from lapse_spark.stream.directory_lock import locked
with locked(SimpleNamespace(local=Path(sys.argv[1]), path=sys.argv[1])):
    print("locked", flush=True)
    signal.pause()
"""


def test_a_run_that_is_killed_keeps_nobody_away(tmp_path):
    audit = SimpleNamespace(local=tmp_path / "audit", path=str(tmp_path / "audit"))
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, audit.path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LapseError, match=f"the directory {audit.path} is running"), locked(audit):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with locked(audit):
        pass


def test_a_directory_that_cannot_be_locked_is_used_as_it_is(tmp_path, monkeypatch):
    with locked(SimpleNamespace(local=None, path="s3a://letters/audit")):
        pass

    def flock(file, how):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    error = errno.ENOLCK
    with locked(SimpleNamespace(local=tmp_path, path=str(tmp_path))):
        pass
    error = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), locked(SimpleNamespace(local=tmp_path, path="")):
        pass


def test_a_directory_on_this_machine_is_known_by_its_file_system(spark, tmp_path):
    (tmp_path / "with a space").mkdir()
    assert Output(spark, f"{tmp_path}/with a space").local == tmp_path / "with a space"
    assert Output(spark, f"file:{tmp_path}/").local == tmp_path


def monitored(spark, path):
    monitor.run(spark, NOWHERE, path)


def alerted(spark, path):
    alert.run(spark, NOWHERE, path)


def archived(spark, path):
    archive.run(spark, NOWHERE, path)


def followed(spark, path):
    queue = Followed(name=Path(path).name, underlying=["orders"])
    running_ledger.run(spark, NOWHERE, [queue], str(Path(path).parent), running_ledger.Rule(), every=None)


def compacted(spark, path):
    (Path(path) / "letters" / "day=2026-01-01").mkdir(parents=True)
    done = CliRunner().invoke(compact, [path], standalone_mode=False)
    if done.exception is not None:
        raise done.exception


@pytest.mark.parametrize(
    ("job", "file"),
    [
        (monitored, FILE),
        (alerted, "_alerts_lock"),
        (archived, FILE),
        (followed, FILE),
        (compacted, FILE),
    ],
)
def test_a_job_does_nothing_with_the_directory_of_one_that_runs(spark, tmp_path, monkeypatch, job, file):
    monkeypatch.setattr(alert, "find", lambda *args, **more: [])
    path = tmp_path / "output"
    output = Output(spark, str(path))
    with locked(output, file), pytest.raises((LapseError, ClickException), match=f"{path} is running. Nothing was"):
        job(spark, str(path))
    left = {one.name for one in path.iterdir()} - {"letters"}
    assert left == {file}
