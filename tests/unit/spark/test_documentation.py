from pathlib import Path

import pytest

from lapse.embedded import jars
from lapse_spark import schema
from lapse_spark.session import DELTA_SETTINGS

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("name", ["DEAD_LETTER", "EVENT", "DELIVERY", "SOW", "QUARANTINE"])
def test_the_document_has_the_columns_as_they_are(name):
    assert schema.table(getattr(schema, name)) in DOCUMENT.read_text("utf-8")


def test_delta_is_named_as_it_is_pinned():
    text = DOCUMENT.read_text("utf-8")
    assert "io.delta:delta-spark_2.13:4.0.0" in {jar.coordinate for jar in jars.pins(jars.DELTA)}
    assert "io.delta:delta-spark_2.13:4.0.0" in text
    assert all(f"--conf {key}={value}" in text for key, value in DELTA_SETTINGS.items())
