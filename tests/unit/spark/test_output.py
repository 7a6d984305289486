import pytest

from lapse_spark import jvm, schema
from lapse_spark.letters import archive, delta
from lapse_spark.letters.delta import DeltaOutput
from lapse_spark.stream.output import Output

pytestmark = [pytest.mark.spark, pytest.mark.feature("X7")]


def test_many_batches_become_one_and_the_newest_stays(spark, tmp_path):
    output = Output(spark, str(tmp_path))

    def write(number, table="letters"):
        rows = spark.range(3).selectExpr(f"concat('{number}-', id) AS id", "TIMESTAMP '2026-03-01 12:00:00' AS at")
        output.write(table, rows, rows["at"], number)

    def state():
        names = sorted(path.name for path in (tmp_path / "letters" / "day=2026-03-01").iterdir())
        return names, sorted(row.id for row in output.read("letters").collect())

    for number in range(4):
        write(number)
    _, everything = state()
    assert len(everything) == 12
    assert output.compact("letters") == 3
    assert state() == (["batch_id=2", "batch_id=3"], everything)
    assert output.compact("letters") == 0
    # The newest batch may be repeated after a crash, and is what it was.
    write(3)
    assert state() == (["batch_id=2", "batch_id=3"], everything)

    # A compaction that was killed before its parts were gone, and one that was killed before it was whole.
    directory = tmp_path / "letters" / "day=2026-03-01"
    write(4)
    spark.read.parquet(str(directory / "batch_id=2"), str(directory / "batch_id=3")).write.parquet(
        str(directory / "_merged-3")
    )
    _, everything = state()
    assert len(everything) == 15
    assert output.compact("letters") == 0
    assert state() == (["batch_id=3", "batch_id=4"], everything)
    (directory / "_merged-3").mkdir()
    assert output.compact("letters") == 0
    assert state() == (["batch_id=3", "batch_id=4"], everything)


def test_a_kill_at_any_step_leaves_a_small_file_that_can_be_read(spark, tmp_path):
    """Hadoop renames a file and its checksum one after the other, so a kill left a new file with an old checksum."""
    output, checksum = Output(spark, str(tmp_path)), tmp_path / ".topics.json.crc"
    path = jvm.view(spark).org.apache.hadoop.fs.Path(str(tmp_path / "topics.json"))
    stream = path.getFileSystem(jvm.hadoop_settings(spark)).create(path)
    stream.write(bytearray(b"as Spark writes its checkpoint"))
    stream.close()
    before = checksum.read_bytes()
    output.put_text("topics.json", "as a job writes it")
    if checksum.exists():
        checksum.write_bytes(before)  # the job was killed between the two
    assert output.text("topics.json") == "as a job writes it"
    assert [one.name for one in tmp_path.iterdir()] == ["topics.json"]


@pytest.mark.feature("D2")
@pytest.mark.parametrize("kind", [Output, DeltaOutput])
def test_an_archive_of_an_earlier_version_has_nulls_in_new_columns(spark, tmp_path, kind):
    """`epoch` came later: archives have batches without it."""
    output = kind(spark, str(tmp_path))
    names = [name for name in schema.DEAD_LETTER.names if name != "fault"]
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").write_text('{"id": "a"}')

    def write(number, columns):
        facts = {"id": f"'{number}'", "letter_at": "TIMESTAMP '2026-03-01 12:00:00'", "epoch": "9L"}
        answer = [
            f"CAST({facts.get(name, 'NULL')} AS {schema.DEAD_LETTER[name].dataType.simpleString()}) AS {name}"
            for name in columns
        ]
        rows = spark.range(1).selectExpr(*answer)
        output.write("letters", rows, rows["letter_at"], number)

    def epochs():
        assert type(delta.output(spark, str(tmp_path))) is kind
        return {row["id"]: row["epoch"] for row in archive.letters(spark, str(tmp_path)).collect()}

    older = [name for name in names if name != "epoch"]
    write(0, older)
    assert epochs() == {"0": None}
    write(1, names)
    write(2, older)
    assert epochs() == {"0": None, "1": 9, "2": None}
    assert archive.letters(spark, str(tmp_path)).columns == [*names, "day", "fault"]
