from datetime import UTC, datetime

import pytest
from pyspark.sql import functions

from lapse.core.expression import ExpressionError, compile_filter
from lapse.core.reason import Reason
from lapse.protocol import dead_letter as wire
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.redrive import headers as of_command
from lapse_client.letters.dead_letter import parse_letter
from lapse_client.letters.redrive import Original
from lapse_client.reading.replay import Replayed
from lapse_spark import local_rows, schema
from lapse_spark.letters import audit, redrive, redriven
from lapse_spark.letters.redrive import Choice, Target
from lapse_spark.records import dead_letter

pytestmark = [pytest.mark.spark, pytest.mark.feature("D5")]

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def letter(offset, *reasons, original=(), value=b'{"price": 5, "symbol": "ABC"}', entity="q", at_ms=1_000, **facts):
    death = wire.Death(
        entity=entity,
        bookmark=Bookmark("orders", 2, offset),
        reasons=reasons or (Reason.TIME_LIMIT,),
        expired_at_ms=at_ms,
        **facts,
    )
    return value, wire.headers(death, list(original))


@pytest.fixture
def letters(spark):
    def parse(*described):
        rows = [("dlq.q", 0, offset, AT, b"key", value, headers) for offset, (value, headers) in enumerate(described)]
        return dead_letter.parse(local_rows.frame(spark, rows, schema.RAW))

    return parse


def offsets(chosen):
    return sorted(row.offset for row in chosen.collect())


def test_letters_are_chosen_by_entity_reason_time_and_expression(letters):
    read = letters(
        letter(1),
        letter(2, Reason.MAX_DELIVERIES, Reason.MAX_CANCELS),
        letter(3, at_ms=5_000),
        letter(4, entity="other"),
        letter(5, value=b'{"price": 50, "symbol": "XYZ"}'),
        letter(6, value=b"no json"),
        letter(1),  # a copy
        (b"foreign", []),
    )
    assert offsets(redrive.choose(read, Choice())) == [1, 2, 3, 4, 5, 6]
    assert offsets(redrive.choose(read, Choice(entities=["other"]))) == [4]
    assert offsets(redrive.choose(read, Choice(reasons=["max_cancels", "purged"]))) == [2]
    assert offsets(redrive.choose(read, Choice(since_ms=2_000))) == [3]
    assert offsets(redrive.choose(read, Choice(entities=["q"], until_ms=2_000))) == [1, 2, 5, 6]
    fields = {"/price": "number", "/symbol": "string"}
    assert offsets(redrive.choose(read, Choice(filter="/price > 10 AND /symbol LIKE '^X'", fields=fields))) == [5]
    with pytest.raises(ExpressionError):
        redrive.choose(read, Choice(filter="/price >"))


@pytest.mark.feature("C30")
def test_a_slow_job_is_not_made_up_for_above_the_rate(monkeypatch):
    """Each job of 20 s sends at its end. The next one must not send at once, as if it were late."""
    now_s, sent_at_s = [0.0], []
    monkeypatch.setattr(audit.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(audit.time, "sleep", lambda seconds: now_s.append(now_s.pop() + seconds))

    def send(number):
        now_s.append(now_s.pop() + (20 if number == 0 else 0))
        sent_at_s.append((number, now_s[0]))

    audit.send_in_turn(4, send)
    assert sent_at_s == [(0, 20.0), (1, 25.0), (2, 30.0), (3, 35.0)]


@pytest.mark.feature("X7")
def test_a_hook_that_returns_no_frame_is_refused(letters):
    with pytest.raises(ValueError, match="the hook returns None, expected a DataFrame"):
        redrive.check_hook_output(letters(letter(1)), None)


@pytest.mark.feature("X1")
def test_a_filter_of_fields_means_what_it_means_to_the_command(letters):
    """Kinds are those of the payload, and large integers are exact."""
    written = (
        b'{"a": 5}', b'{"a": "5"}', b'{"a": 5.0}', b'{"a": 0.1}', b'{"a": true}', b'{"a": null}', b'{"a": [5]}', b"{}",
        b'{"a": "x"}', b"{'a': 5}", b'{"a": 5, "b": "\xff"}', b'{"a": 1, "a": 5}', b'{"a": "NaN"}', b"5",
        b'{"a": 9007199254740993}', b'{"a": 9007199254740992}', b'{"a": 12345678901234567890}', b'{"a": "true"}', b"",
    )  # fmt: skip
    read = letters(*(letter(place, value=value) for place, value in enumerate(written))).cache()
    records = [
        Replayed(bookmark=Bookmark("dlq.q", 0, place), key=b"key", value=value, timestamp_ms=0, headers=[])
        for place, value in enumerate(written)
    ]
    for kind, filters in {
        "number": [
            "/a = 5", "/a > 4", "/a != 5", "/a IS NULL", "/a * 2 = 10", "/a = 9007199254740993",
            "/a <= 9007199254740992",
        ],
        "string": ["/a = '5'", "/a LIKE '5'", "/a = 'true'"],
        "boolean": ["/a = TRUE"],
    }.items():  # fmt: skip
        for text in filters:
            matches = compile_filter(text)
            expected = [one.bookmark.offset for one in records if matches(Original(parse_letter(one)))]
            assert offsets(redrive.choose(read, Choice(filter=text, fields={"/a": kind}))) == expected, text


@pytest.mark.feature("C29", "C30")
def test_a_redriven_record_names_its_queue_and_has_no_lifetime(letters):
    original = [("trace", b"t"), ("lapse-ttl-ms", b"500"), ("lapse-message-id", b"m1"), ("lapse-redriven-count", b"1")]
    read = letters(letter(7, original=original, expires_at_ms=900, delivery_count=4))
    row = redrive.records(redrive.choose(read, Choice()), Target()).head()
    assert (row.topic, row.partition, bytes(row.key)) == ("orders", 2, b"key")
    assert {one.key: bytes(one.value) for one in row.headers} == {
        "trace": b"t",
        "lapse-original-ttl-ms": b"500",
        "lapse-redriven-count": b"2",
        "lapse-message-id": b"redrive/q/orders:2:7/1",
        "lapse-redrive-queue": b"q",
    }


@pytest.mark.feature("C54")
def test_a_letters_letter_goes_back_as_the_command_sends_it(letters):
    _, first = letter(7, expires_at_ms=900, epoch=3)
    spring = [(f"kafka_dlt-original-{fact}", b"12345678") for fact in ("topic", "partition", "offset")]
    for original in (first, spring):
        value, second = letter(8, original=[*original, ("own", b"x")], entity="again")
        for target, queue in ((Target(), "again"), (Target(topic="orders.repair"), "")):
            row = redrive.records(redrive.choose(letters((value, second)), Choice()), target).head()
            sent = of_command(second, lapse_id="again/orders:2:8/0", redriven_count=0, queue=queue)
            assert {one.key: bytes(one.value) for one in row.headers} == dict(sent)
    back = of_command(
        letter(8, original=first, entity="again")[1], lapse_id="again/orders:2:8/0", redriven_count=0, queue="again"
    )
    read = letters((b"{}", back)).head()
    assert read.expires_at_ms == 900
    once_more = redrive.records(redrive.choose(letters((b"{}", back)), Choice()), Target()).head()
    assert {one.key for one in once_more.headers} == {
        "lapse-redriven-count",
        "lapse-message-id",
        "lapse-redrive-queue",
    }


@pytest.mark.feature("C58", "X6")
def test_what_is_sent_again_is_no_repeat_and_leads_back_to_its_letter(letters):
    chosen = redrive.choose(letters(letter(7)), Choice()).withColumn(redriven.TIMES, functions.lit(2))
    row = redrive.records(chosen, Target()).head()
    (given,) = [bytes(one.value) for one in row.headers if one.key == "lapse-message-id"]
    assert given == b"redrive/q/orders:2:7/0+2"
    read = chosen.select(
        *(redriven.letter_of(functions.lit(name)) for name in (given.decode(), "redrive/q/orders:2:7/0", "mine+2"))
    )
    assert tuple(read.head()) == ("q/orders:2:7/0", "q/orders:2:7/0", None)


@pytest.mark.feature("C30")
def test_original_and_new_lifetimes_on_request(letters):
    chosen = redrive.choose(letters(letter(7, expires_at_ms=900), letter(8)), Choice())

    def lifetimes(target):
        rows = redrive.records(chosen, target).collect()
        names = ("lapse-expires-at-ms", "lapse-ttl-ms")
        return sorted([(one.key, bytes(one.value)) for one in row.headers if one.key in names] for row in rows)

    assert lifetimes(Target()) == [[], []]
    assert lifetimes(Target(lifetime="original")) == [[], [("lapse-expires-at-ms", b"900")]]
    assert lifetimes(Target(lifetime="new", ttl_ms=60_000)) == [[("lapse-ttl-ms", b"60000")]] * 2


@pytest.mark.feature("C29")
def test_a_letter_that_names_nobody_goes_back_for_everybody(letters):
    row = redrive.records(redrive.choose(letters(letter(7, entity="")), Choice()), Target()).head()
    assert "lapse-redrive-queue" not in {one.key for one in row.headers}


def test_elsewhere_no_queue_is_named_and_the_key_decides_the_partition(letters):
    row = redrive.records(redrive.choose(letters(letter(7)), Choice()), Target(topic="orders.repair")).head()
    assert (row.topic, row.partition) == ("orders.repair", None)
    assert "lapse-redrive-queue" not in {one.key for one in row.headers}


def test_the_loop_limit_refuses_and_the_plan_shows_it(letters):
    again = [("lapse-redriven-count", b"3")]
    read = letters(letter(1, expires_at_ms=500), letter(2, expires_at_ms=5_000), letter(3, original=again))
    chosen = redrive.choose(read, Choice(max_redrives=3))
    rows = {row.refused: row for row in redrive.plan(chosen, Target(), now_ms=1_000).collect()}
    assert (rows[None].letters, rows[None].deadline_passed, rows[None].target) == (2, 1, "orders")
    assert rows["loop limit"].letters == 1
    assert offsets(redrive.records(chosen, Target()).withColumnRenamed("partition", "offset")) == [2, 2]
