"""The lock of an audit of redrives: it keeps a second run away, and ends with the process that holds it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lapse_client.error import LapseError
from lapse_spark.letters.audit_lock import locked
from lapse_spark.stream.output import Output

pytestmark = [pytest.mark.spark, pytest.mark.feature("C58")]

_HOLDER = """
import signal, sys
from pathlib import Path
from types import SimpleNamespace
from lapse_spark.letters.audit_lock import locked
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
