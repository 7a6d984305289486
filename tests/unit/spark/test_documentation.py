from pathlib import Path

import pytest

from lapse_spark import schema

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("name", ["DEAD_LETTER", "EVENT", "DELIVERY", "SOW", "QUARANTINE"])
def test_the_document_has_the_columns_as_they_are(name):
    assert schema.table(getattr(schema, name)) in DOCUMENT.read_text("utf-8")
