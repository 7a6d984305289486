"""A program that lags behind a SOW topic: its channel stops reading, and yet answers reach whoever waits (S5, S6)."""

import logging

import pytest

from lapse.testing import Lapse
from lapse_client.sow import sow_client, subscription

_RECORDS = 60


@pytest.fixture(autouse=True)
def _soon_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sow_client, "_MOST_WAITING", 10)
    monkeypatch.setattr(subscription, "_MOST_WAITING", 10)
    monkeypatch.setattr("lapse_client.session.channel.MOST_AT_ONCE", 5)


@pytest.fixture
def lapse_with_records(lapse: Lapse) -> Lapse:
    lapse.sow("prices", partitions=2)
    with lapse.publisher() as publisher:
        for number in range(_RECORDS):
            publisher.publish("prices", b'{"n": %d}' % number, key=str(number))
    lapse.settle()
    return lapse


@pytest.mark.feature("S6", "X3")
def test_a_subscription_begins_although_the_records_of_one_shard_fill_its_buffer(lapse_with_records: Lapse) -> None:
    with lapse_with_records.sow_client("prices") as prices, prices.sow_and_subscribe() as updates:
        kinds = [record.kind for _, record in zip(range(_RECORDS + 1), updates, strict=False)]
    assert sorted(kinds) == ["group-end"] + ["sow"] * _RECORDS


@pytest.mark.feature("S6", "X3")
def test_a_subscription_ends_at_once_although_much_waits(
    lapse_with_records: Lapse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lapse_client")
    with lapse_with_records.sow_client("prices") as prices:
        with prices.sow_and_subscribe() as updates:
            assert next(iter(updates)).kind == "sow"
        assert prices.depth()["subscriptions"] == 0
    assert not caplog.messages, "its unsubscribe was answered"


@pytest.mark.feature("S3", "S5", "X3")
def test_records_are_deleted_while_a_query_yields_them(lapse_with_records: Lapse) -> None:
    with lapse_with_records.sow_client("prices") as prices:
        for record in prices.query():
            assert record.key is not None
            assert prices.delete(keys=[record.key]) == 1
        assert prices.depth()["records"] == 0


@pytest.mark.feature("S5", "X3")
def test_a_query_yields_its_records_while_those_of_another_wait(lapse_with_records: Lapse) -> None:
    with lapse_with_records.sow_client("prices") as prices:
        outer = prices.query()
        first = next(outer)
        assert len(list(prices.query())) == _RECORDS
        assert len([first, *outer]) == _RECORDS
