"""A broker that is given is never replaced by an embedded one."""

import pytest

from lapse.embedded import BrokerFailed, broker, daemon
from lapse.embedded.broker import given_broker


def test_given_broker_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    with broker() as servers:
        assert servers == "broker.example:9092"


def test_no_daemon_beside_a_given_broker(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    with pytest.raises(BrokerFailed, match=r"is set to broker\.example:9092.*Unset it"):
        daemon.start(tmp_path, port=0)


def test_an_empty_variable_gives_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", " ")
    assert given_broker() is None
