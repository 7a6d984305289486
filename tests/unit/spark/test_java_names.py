"""A name of Java is looked up once in a session: each lookup of an unknown name searches some hundred jars."""

import pytest
from py4j import protocol
from py4j.java_gateway import java_import
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_frame_and_an_error_look_up_no_name_that_the_session_knows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    send, looked_up = client.send_command, list[str]()

    def noted(command: str, *rest: object, **options: object) -> object:
        if command.startswith(protocol.REFLECTION_COMMAND_NAME):
            looked_up.append(command)
        return send(command, *rest, **options)

    def use() -> None:
        spark.range(3).selectExpr("id + 1 AS next").groupBy("next").count().collect()
        with pytest.raises(AnalysisException, match="nothing"):
            spark.range(3).select("nothing")

    use()
    monkeypatch.setattr(client, "send_command", noted)
    use()
    assert looked_up == []


def test_a_class_is_found_once_it_is_imported(spark: SparkSession) -> None:
    """py4j takes an unknown name for a package, and such an answer is not kept."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    with pytest.raises(TypeError, match="JavaPackage"):
        jvm.Collator.getInstance()
    java_import(jvm, "java.text.Collator")
    assert jvm.Collator.getInstance() is not None
    assert jvm.java.text.Collator.getInstance() is not None
