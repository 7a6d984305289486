"""A directory that no job has written, or that Spark must not replace, is told before Spark starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lapse_spark import local_directory, option
from lapse_spark.cli import spark
from lapse_spark.instant import inquiry
from lapse_spark.monitoring import upkeep


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    for place in (option, inquiry, upkeep):
        monkeypatch.setattr(place, "session", started)
    monkeypatch.setattr(option.Cluster, "await_broker", lambda _: None)
    for name in local_directory.SET_UP:
        monkeypatch.delenv(name, raising=False)


JOBS = [
    (["report", "{}"], "monitor"),
    (["alerts", "{}", "-b", "localhost:1"], "monitor"),
    (["compact", "{}"], "archive"),
    (["redrive", "audit", "--archive", "{}", "--bootstrap", "localhost:1"], "archive"),
]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize(("words", "job"), JOBS)
def test_a_directory_that_no_job_has_written_is_reported_before_spark_starts(
    words: list[str], job: str, empty: bool, tmp_path: Path
) -> None:
    place = tmp_path / "monitr"
    if empty:
        place.mkdir()
    done = CliRunner().invoke(spark, [one.format(place) for one in words])
    assert done.exit_code == 1
    assert f"Error: {place}: no output of the {job}; run it first: lapse spark {job} {place}" in done.stderr


@pytest.mark.feature("X7")
@pytest.mark.parametrize("words", [["monitor", "{}"], ["archive", "{}"], ["redrive", "{}"]], ids=lambda one: one[0])
def test_an_output_that_is_a_file_or_below_one_is_reported_before_spark_starts(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        done = CliRunner().invoke(spark, [*(one.format(place) for one in words), "-b", "localhost:1"])
        assert (done.exit_code, done.stderr) == (1, f"Error: {place}: {tmp_path}/file is a file. Give a directory\n")


@pytest.mark.feature("X7")
@pytest.mark.parametrize("name", ["", "/", "file:"], ids=["empty", "root", "scheme"])
@pytest.mark.parametrize(
    "words",
    [
        *(words for words, _ in JOBS),
        ["monitor", "{}", "-b", "localhost:1"],
        ["archive", "{}", "-b", "localhost:1"],
        ["archive", "{}", "--purge-before", "2026-01-01", "-b", "localhost:1"],
        ["redrive", "{}", "-b", "localhost:1"],
        ["lives", "--entity", "orders", "--output", "{}", "-b", "localhost:1"],
        ["state", "--entity", "orders", "--at", "1", "--output", "{}", "-b", "localhost:1"],
        ["ledger", "--queue", "orders", "--topics", "orders", "--output", "{}", "-b", "localhost:1"],
    ],
    ids=lambda words: " ".join(word for word in words if word[0].isalpha() or word.startswith("--"))[:40],
)
def test_a_directory_without_a_name_is_refused(words: list[str], name: str) -> None:
    """It is what a script passes if its variable is not set. It would be the root of the file system."""
    done = CliRunner().invoke(spark, [one.format(name) for one in words])
    assert done.exit_code == 1
    assert done.stderr == f"Error: {name!r} is no directory for an output. Give a directory of its own\n"


@pytest.mark.feature("X7")
def test_an_output_where_this_user_may_not_write_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_directory.os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ValueError, match=f"may not write to {tmp_path}. Give another"):
        local_directory.check_writable(str(tmp_path / "new" / "one"))
    local_directory.check_writable("s3a://bucket/out")


@pytest.mark.feature("X7", "C30")
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--ttl-ms 5", "--lifetime new and --ttl-ms go together"),  # it would have been ignored
        ("--lifetime new", "--lifetime new and --ttl-ms go together"),  # it would have been for ever
        ("--lifetime original --ttl-ms 0", "--lifetime new and --ttl-ms go together"),
    ],
)
def test_options_of_a_redrive_that_mean_nothing_are_refused(words: str, fault: str) -> None:
    done = CliRunner().invoke(spark, ["redrive", "audit", *words.split(), "-b", "localhost:1"])
    assert (done.exit_code, done.stderr.startswith(f"Error: {fault}")) == (1, True), done.stderr


@pytest.mark.feature("X7")
def test_a_redrive_of_no_time_is_refused() -> None:
    done = CliRunner().invoke(spark, ["redrive", "audit", "--since", "7", "--until", "7", "-b", "localhost:1"])
    assert done.exit_code == 2
    assert "Error: --until 7 is not after --since 7: nothing is between them" in done.stderr


@pytest.mark.feature("X7")
def test_the_error_names_the_place_of_a_hook_that_is_not_found() -> None:
    done = CliRunner().invoke(spark, ["redrive", "audit", "--hook", "no_such_hooks:change", "-b", "localhost:1"])
    fault = "--hook no_such_hooks:change: No module named 'no_such_hooks'. Name its directory in PYTHONPATH"
    assert (done.exit_code, done.stderr) == (1, f"Error: {fault}\n")


@pytest.mark.feature("X7")
def test_a_report_that_cannot_be_written_is_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").touch()
    (tmp_path / "file").touch()
    page = tmp_path / "file" / "letters.html"
    done = CliRunner().invoke(spark, ["report", str(tmp_path), "--output", str(page)])
    assert (done.exit_code, done.stderr) == (1, f"Error: {page}: {tmp_path}/file is a file. Give a directory\n")


@pytest.mark.feature("X7")
def test_a_file_without_a_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").touch()
    books = tmp_path / "books.json"
    books.write_text("no ledger")
    done = CliRunner().invoke(spark, ["report", str(tmp_path), "--ledger", str(books)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: --ledger {books}: no ledger as lapse spark ledger --json prints it: ")


@pytest.mark.feature("X7")
@pytest.mark.parametrize("address", ["hooks.example.com/secret", "https:///secret", "http://[::1/secret"])
def test_a_wrong_webhook_is_reported_before_anything_else(address: str, tmp_path: Path) -> None:
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").touch()
    words = ["alerts", str(tmp_path), "--webhook", address, "-b", "localhost:1"]
    done = CliRunner().invoke(spark, words)
    assert (done.exit_code, done.stderr) == (1, "Error: the webhook is no address: expected https://host/path\n")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("words", "within"),
    [
        (["lives", "--entity", "orders", "--output", "{}"], ""),
        (["state", "--entity", "orders", "--at", "1", "--output", "{}"], ""),
        (["ledger", "--queue", "orders", "--topics", "orders", "--output", "{}"], "differences"),
    ],
)
def test_a_directory_with_files_of_others_is_not_replaced(words: list[str], within: str, tmp_path: Path) -> None:
    place = tmp_path / within
    place.mkdir(exist_ok=True)
    (place / "part-00000-c000.snappy.parquet").touch()
    (place / "_SUCCESS").touch()
    letter = place / "letter.txt"
    letter.touch()
    done = CliRunner().invoke(spark, [*(one.format(tmp_path) for one in words), "-b", "localhost:1"])
    assert done.exit_code == 1
    assert f"Spark would delete {letter}, which it has not written. Give a new directory" in done.stderr
    letter.unlink()
    local_directory.check_replaceable(str(place))
    with pytest.raises(ValueError, match="_SUCCESS"):
        local_directory.check_replaceable(str(place / "_SUCCESS"))


@pytest.mark.parametrize(
    ("path", "config", "environment"),
    [
        ("s3a://letters/monitor", {}, {}),
        ("monitor", {"spark.hadoop.fs.defaultFS": "hdfs://here"}, {}),
        ("monitor", {}, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
    ],
)
def test_what_only_spark_can_see_is_left_to_it(
    path: str, config: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    local_directory.check_written(path, config)
    local_directory.check_replaceable(path, config)
