"""A job that goes on: it takes letters in as they come, until a signal ends it as a terminal would."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lapse.core.reason import Reason
from support.kafka.log import until
from support.programs.standalone import quick_java
from support.suite.at_length import AT_LENGTH
from support.suite.class_archives import interpreted

ENVIRONMENT = quick_java() if AT_LENGTH else interpreted(quick_java())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.feature("D2", "X7")
def test_letters_are_counted_as_they_come_until_ctrl_c(kafka, dead, tmp_path):
    path = tmp_path / "letters"
    dead(0, 20, Reason.TIME_LIMIT)
    job = [sys.executable, "-m", "lapse", "spark", "monitor", str(path), "--every", "1 second", "--json"]
    job += ["--bootstrap", kafka, "--pattern", dead.pattern, "--conf", "spark.sql.shuffle.partitions=2"]
    errors = (tmp_path / "errors").open("w+")
    running = subprocess.Popen(
        job, stdout=subprocess.PIPE, stderr=errors, env=ENVIRONMENT, text=True, start_new_session=True
    )

    def read() -> int:
        assert running.poll() is None, (tmp_path / "errors").read_text()
        lag = path / "lag.json"
        return json.loads(lag.read_text())["records"] if lag.is_file() else 0

    try:
        until(lambda: read() == 20, "what was there is read", 120)
        dead(20, 30, Reason.MAX_DELIVERIES)
        until(lambda: read() == 30, "what came is read", 60)
        os.killpg(running.pid, signal.SIGINT)
        printed, _ = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, (tmp_path / "errors").read_text()
    assert "Traceback" not in (tmp_path / "errors").read_text()
    counts = [
        (row["reasons"], row["letters"]) for row in json.loads(printed)["counts"]
    ]  # ten letters died in each hour
    assert sorted(counts) == [("max_deliveries", 10), ("time_limit", 10), ("time_limit", 10)]
