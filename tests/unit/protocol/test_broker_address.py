"""Addresses of brokers: what can be none is told, and nothing else."""

import pytest

from lapse.protocol.broker_address import address_fault


@pytest.mark.parametrize(
    "servers",
    [
        *("localhost", "127.0.0.1:9092", "a:1,b.example.org:65535", " a:1 , b:2 ,", "[::1]:9092", "[::1]", "::1"),
        *("SASL_SSL://a:9093", "PLAINTEXT://a:9092,ssl://b", "my_broker-1:9092"),
    ],
)
def test_addresses_are_taken(servers: str) -> None:
    assert address_fault(servers) == ""


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("http://127.0.0.1:9092", "'http://127.0.0.1:9092' is no broker's address: expected host:port"),
        ("a:1,b:65536", "'b:65536' is no"),
        ("a:kafka", "'a:kafka' is no"),
        ("a b:1", "'a b:1' is no"),
        ("a:1/topic", "'a:1/topic' is no"),
        ("\udcff:9092", r"'\udcff:9092' is no broker's address"),
        ("\udcff::1", "is no broker's address"),
        (":9092", "':9092' is no"),
        (",", "no broker is named"),
        ("x" * 500 + "/", "expected host:port"),
    ],
)
def test_what_can_be_no_address_is_reported_with_what_to_do(servers: str, message: str) -> None:
    assert message in address_fault(servers)
    assert "Correct KAFKA_BOOTSTRAP_SERVERS" in address_fault(servers)
    assert len(address_fault(servers)) < 300
