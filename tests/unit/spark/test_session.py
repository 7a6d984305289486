import pytest
from py4j.protocol import REFLECTION_COMMAND_NAME
from pyspark.errors.utils import is_debugging_enabled
from pyspark.sql import Window, functions

from lapse_spark import Connection, read
from lapse_spark.session import _asks_for_jars, session


@pytest.mark.spark
def test_a_running_session_is_taken_as_it_is(spark):
    assert session(master="local[7]") is spark


@pytest.mark.spark
def test_a_stage_that_hotspot_would_not_compile_is_planned_in_smaller_methods(spark):
    # HotSpot's own limit, -XX:HugeMethodLimit: what is longer is interpreted for ever, at half the speed.
    assert spark.conf.get("spark.sql.codegen.hugeMethodLimit") == "8000"


@pytest.mark.spark
def test_plans_are_neither_noted_nor_written_out_for_pages_that_are_off(spark):
    assert not is_debugging_enabled()
    assert spark.conf.get("spark.sql.ui.explainMode") == "simple"


@pytest.mark.spark
def test_a_name_of_java_is_asked_for_once(spark, monkeypatch):
    """Java looks through all jars for each `functions` of Python's; a ledger has some thousand."""

    def use():
        either = functions.coalesce(functions.col("a") + 1, functions.lit(2))
        return either.alias("b"), functions.array("a", "b"), Window.partitionBy("a")

    use()
    client = spark.sparkContext._gateway._gateway_client
    send, asked = client.send_command, []
    monkeypatch.setattr(client, "send_command", lambda command, *rest: asked.append(command) or send(command, *rest))
    use()
    assert len(asked) > 5
    assert [command for command in asked if command.startswith(REFLECTION_COMMAND_NAME)] == []


def test_the_users_own_jars_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not _asks_for_jars({})
    assert _asks_for_jars({"spark.jars.packages": "a:b:1"})
    (tmp_path / "spark-defaults.conf").write_text("# comment\nspark.master  local\nspark.jars.packages  a:b:1\n")
    assert _asks_for_jars({})
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory=2g\n")
    assert not _asks_for_jars({})
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    assert _asks_for_jars({})


@pytest.mark.spark
@pytest.mark.feature("X5")
def test_no_secret_in_a_plan(spark):
    connection = Connection(
        "127.0.0.1:1", {"sasl.jaas.config": 'x required password="s3cret";', "ssl.key.password": "s3cret"}
    )
    letters = read.dead_letters(spark, connection)
    plans = letters._jdf.queryExecution()
    assert "s3cret" not in plans.logical().toString()
    assert "s3cret" not in plans.analyzed().toString()
    assert "s3cret" not in repr(letters)
