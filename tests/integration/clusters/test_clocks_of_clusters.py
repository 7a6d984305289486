"""`lapse transfer --follow` between two clusters of which one has a wrong clock: no lifetime changes (Q26, C74)."""

from collections.abc import Iterator

import pytest

from support.kafka.log import texts, until
from support.kafka.skewed import SkewedKafka
from support.processes.deployment import Deploy, broker_now_ms
from support.processes.sides import Consumer, Sides
from support.suite.at_length import cases

QUEUES = {"orders": {"expiration": "enabled"}, "back": {"expiration": "enabled"}}


@pytest.fixture(scope="module", params=cases([60], [-60]))
def sides(kafka: str, deploy: Deploy, request: pytest.FixtureRequest) -> Iterator[Sides]:
    """Here the clock is right; there it is a minute ahead of it, or behind."""
    with SkewedKafka(request.param * 1_000) as other:
        both = Sides(deploy(QUEUES), deploy(QUEUES, servers=other.bootstrap_servers))
        for one in both:
            one.apply().worker()
        for one in both:
            one.workers[0].wait_for_shards(2)
        yield both


@pytest.mark.feature("Q26", "C74", "L9", "L1", "L13")
@pytest.mark.parametrize("back", [False, True])
def test_deadlines_are_the_same_and_what_has_less_life_than_the_difference_stays(sides: Sides, back: bool) -> None:
    stem = "back" if back else "orders"
    here, there = reversed(sides) if back else sides
    (probe,) = here.write(stem, "probe", headers=[("lapse-ttl-ms", b"1")])
    (mark,) = there.write(stem, "mark", headers=[("lapse-ttl-ms", b"1")])
    now_ms, ahead_ms = probe.timestamp_ms, probe.timestamp_ms - broker_now_ms()
    deadlines: dict[bytes, int | None] = {b"never": None}
    here.write(stem, "never")
    for number in range(20):
        value = b"absolute %d" % number
        deadlines[value] = now_ms + 600_000 + number
        here.write(stem, value, headers=[("lapse-expires-at-ms", b"%d" % (now_ms + 600_000 + number))])
    for number in range(20):
        (written,) = here.write(stem, f"relative {number}", headers=[("lapse-ttl-ms", b"%d" % (700_000 + number))])
        deadlines[b"relative %d" % number] = written.timestamp_ms + 700_000 + number
    letters = here.tail(f"dlq.{here.name(stem)}")
    (short,) = here.write(stem, "short", headers=[("lapse-ttl-ms", b"5000")])
    with Consumer(there, stem, 50) as consumer, sides.following(stem, back=back):
        until(lambda: len(consumer.got) >= len(deadlines), "all but the short one", 30)
        letter = texts(next(one for one in letters.wait(2) if one.value() == b"short"))
        assert here.depth(stem)["depth"] == there.depth(stem)["depth"] == 0
    assert consumer.got == deadlines
    expired_ms = int(letter["lapse-expired-at-ms"])
    assert short.timestamp_ms + 5_000 == int(letter["lapse-expires-at-ms"]) <= expired_ms <= broker_now_ms() + ahead_ms
    logged = (sides.here.directory / f"follow-{stem}.log").read_text("utf-8")
    assert logged.count("max_clock_skew") == 1
    assert ("ahead of that of" if mark.timestamp_ms > probe.timestamp_ms else "behind that of") in logged
