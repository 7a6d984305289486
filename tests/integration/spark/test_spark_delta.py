"""The archive as Delta tables: each batch in it once, whenever the job dies, merged and cleared without a gap."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import date

import pytest
from click.testing import CliRunner

from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse_spark.cli import spark as commands
from lapse_spark.letters import archive, delta
from lapse_spark.stream.output import Output
from support.programs.standalone import quick_java
from support.suite.class_archives import interpreted

pytestmark = [pytest.mark.spark, pytest.mark.feature("D1", "D2")]


@pytest.fixture
def lapse_spark(spark, kafka, dead):
    """Runs a command of `lapse spark` on the letters of `dead`, in this process."""

    def run(command, *words, ok=True):
        options = [] if command == "compact" else ["--bootstrap", kafka, "--pattern", dead.pattern]
        answer = CliRunner().invoke(commands, [command, *map(str, words), *options, "--json"])
        assert (answer.exit_code == 0) == ok, answer.output
        return json.loads(answer.stdout) if ok else answer

    return run


def kept(spark, path):
    """How often the archive has the letter of every offset, copies included."""
    rows = spark.read.format("delta").load(f"{path}/letters").select("offset").collect()
    return Counter(row["offset"] for row in rows)


def history(spark, path, table="letters"):
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{path}/{table}`").orderBy("version").collect()
    return [row["operation"] for row in rows]


@pytest.mark.feature("D3", "X7")
def test_a_batch_that_died_between_its_tables_is_in_delta_once(spark, dead, lapse_spark, tmp_path, monkeypatch):
    path = tmp_path / "archive"
    dead(0, 20, Reason.TIME_LIMIT)
    dead.wire.records(topic.dead_letters(dead.name), [b"foreign"])
    write, tables = delta.DeltaOutput.write, []

    def failing(output, table, *rest):
        write(output, table, *rest)
        tables.append(table)
        if len(tables) == 3:  # the second batch's letters are written, and what it put aside is not
            raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(delta.DeltaOutput, "write", failing)
        died = lapse_spark("archive", path, "--format", "delta", "--max-records", 11, ok=False)
    assert "killed" in str(died.exception)
    assert tables == ["letters", "quarantine", "letters"]

    assert lapse_spark("archive", path)["lag"] == 0  # kept as it was, without being asked again
    assert kept(spark, path) == Counter(range(20))
    assert history(spark, path) == ["WRITE", "WRITE"]
    aside = delta.output(spark, str(path)).read("quarantine").collect()
    assert [(bytes(row["value"]), row["fault"].split(":")[0]) for row in aside] == [(b"foreign", "no dead letter")]
    first = archive.letters(spark, str(path)).where("offset = 0").head()
    assert (bytes(first["key"]), bytes(first["value"]), first["day"]) == (b"k", b"{}", first["letter_at"].date())


@pytest.mark.long
@pytest.mark.feature("D5")
def test_delta_is_redriven_from_merged_and_cleared(spark, kafka, dead, lapse_spark, tmp_path, create_topic, unique):
    path = tmp_path / "archive `1`"  # as SQL names it, it has to be quoted
    for first in (0, 5):
        dead(first, first + 5, Reason.MAX_CANCELS)
        dead(first, first + 1, Reason.MAX_CANCELS)  # a copy
        lapse_spark("archive", path, "--format", "delta")
    assert kept(spark, path) == Counter(range(10)) + Counter([0, 5])
    words = ["redrive", str(tmp_path / "audit"), "--archive", str(path), "--to", create_topic(unique("again"))]
    answer = CliRunner().invoke(commands, [*words, "--bootstrap", kafka, "--json"])
    assert json.loads(answer.stdout)["sent"] == 10

    before = lapse_spark("compact", path)
    assert before["letters"] == 2
    assert lapse_spark("compact", path)["letters"] == 0
    found = archive.letters(spark, str(path))
    assert sorted(row["offset"] for row in found.collect()) == list(range(10))

    days = sorted({row["day"] for row in found.collect()})
    listed = [day.isoformat() for day in days]
    for gone, dry in (([], False), (listed, True), (listed, False)):
        until = date(days[0].year + 1, 12, 31) if gone else days[0]
        words = ["--purge-before", until.isoformat(), *(["--dry-run"] if dry else [])]
        assert lapse_spark("archive", path, *words) == {"deleted": gone, "dry_run": dry}
    assert archive.letters(spark, str(path)).count() == 0
    # The stream goes on where it was: nothing of what was cleared comes back.
    dead(20, 22, Reason.MAX_CANCELS)
    lapse_spark("archive", path)
    assert sorted(row["offset"] for row in archive.letters(spark, str(path)).collect()) == [20, 21]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("D3")
def test_a_killed_process_leaves_whole_batches_and_the_next_one_goes_on(spark, kafka, dead, lapse_spark, tmp_path):
    path = tmp_path / "archive"
    dead(0, 80, Reason.TIME_LIMIT)
    job = [sys.executable, "-m", "lapse_spark", "archive", str(path), "--format", "delta", "--max-records", "20"]
    job += ["--bootstrap", kafka, "--pattern", dead.pattern]
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen(job, stdout=log, stderr=log, env=interpreted(quick_java()), start_new_session=True)
    try:
        while not (path / "letters" / "_delta_log" / f"{1:020}.json").exists():
            assert running.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.002)
    finally:
        os.killpg(running.pid, signal.SIGKILL)  # Python and the JVM at once, in the middle of the second batch
        running.wait()
    half = kept(spark, path)
    assert 40 <= half.total() < 80
    assert max(half.values()) == 1
    lapse_spark("archive", path, "--max-records", 100)
    assert kept(spark, path) == Counter(range(80))


@pytest.mark.feature("X7")
def test_another_format_than_the_archives_own_is_refused(spark, dead, lapse_spark, tmp_path):
    dead(0, 3, Reason.TIME_LIMIT)
    plain, tables = tmp_path / "plain", tmp_path / "tables"
    lapse_spark("archive", plain)
    lapse_spark("archive", tables, "--format", "delta")
    for path, found, other in ((plain, "parquet", "delta"), (tables, "delta", "parquet")):
        refused = lapse_spark("archive", path, "--format", other, ok=False)
        assert f"{path} is kept as {found}: leave out --format {other}" in refused.output
    assert (delta.is_here(str(plain)), delta.is_here(f"file:{tables}")) == (False, True)

    unknowing = spark.newSession()
    unknowing.conf.set("spark.sql.catalog.spark_catalog", "")
    with pytest.raises(ValueError, match=r"is kept as Delta tables: give --format delta"):
        archive.letters(unknowing, str(tables))

    # Without its checkpoint a new stream would write everything again.
    (tables / "_checkpoint").rename(tmp_path / "elsewhere")
    assert "has batches and no checkpoint" in lapse_spark("archive", tables, ok=False).output
    assert isinstance(delta.output(spark, str(tmp_path / "new")), Output)
