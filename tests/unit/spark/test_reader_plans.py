"""What Spark plans for the readers: headers and Avro are read once for all columns, and not at all for none."""

import pytest

from lapse_spark import Connection, quarantine, schema
from lapse_spark.read import records as read_records
from lapse_spark.records import dead_letter, delivery, event, sow

pytestmark = pytest.mark.spark

READERS = {"letters": dead_letter.parse, "deliveries": delivery.parse, "events": event.parse, "sow": sow.parse}
WORK = ("reverse(", "array_position(", "array_contains(", "from_avro(", "regexp_extract(")


@pytest.fixture
def read(spark):
    """Returns what a reader makes of no records."""
    return lambda name: READERS[name](spark.createDataFrame([], schema.RAW))


def planned(data):
    return data._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.parametrize("name", READERS)
def test_a_count_reads_no_header(read, name):
    plan = planned(read(name).groupBy().count())
    assert not [work for work in WORK if work in plan]


@pytest.mark.parametrize("name", READERS)
def test_columns_of_the_record_need_no_header(read, name):
    data = read(name)
    plan = planned(data.select("key", "value"))
    assert not [work for work in WORK if work in plan]


@pytest.mark.parametrize("name", ["letters", "deliveries", "sow"])
def test_all_columns_take_the_headers_apart_once(read, name):
    good, _ = quarantine.split(read(name))
    plan = planned(good)
    # Once for the names and once for the values.
    assert plan.count("reverse(headers#") == 2
    looked_up = 2 if name == "sow" else 1  # of a SOW topic: its value, and whether it is there
    assert plan.count(", lapse-expires-at-ms)") == looked_up


@pytest.mark.parametrize("name", READERS)
def test_a_filter_on_the_fault_reads_nothing_again(read, name):
    data = read(name)
    whole, filtered = planned(data), planned(quarantine.split(data)[0])
    assert {work: filtered.count(work) for work in WORK} == {work: whole.count(work) for work in WORK}


def test_few_columns_of_letters_look_few_headers_up(read):
    plan = planned(read("letters").groupBy("family").count())
    assert "array_position(" not in plan
    assert "_apart#" in plan


def test_events_are_decoded_once(read):
    good, _ = quarantine.split(read("events"))
    assert planned(good).count("from_avro(") == 1


@pytest.mark.feature("X7")
def test_a_pattern_that_java_cannot_read_is_named(spark):
    """Spark puts our ends around it, and told what was wrong with the whole."""
    fault = r"'orders\[' is no regular expression of Java: Unclosed character class near index 6"
    with pytest.raises(ValueError, match=fault):
        read_records(spark, Connection("localhost:1"), pattern="orders[")
    with pytest.raises(ValueError, match="Unmatched closing '\\)'"):
        read_records(spark, Connection("localhost:1"), pattern="dlq)|(lapse.*")
