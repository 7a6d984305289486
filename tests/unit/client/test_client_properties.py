"""Client properties as Kafka's own tools take them, in the words of librdkafka (X5, X7)."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse_client import LapseError
from lapse_client.kafka.client_properties import options

JAVA = r"""
! as kafka-topics.sh takes it with --command-config
security.protocol: SASL_SSL
sasl.mechanism = SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="alice" password="s3\"cret=x";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
ssl.endpoint.identification.algorithm=
request.timeout.ms 20000
default.api.timeout.ms=5000
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
"""


@pytest.mark.feature("X5")
def test_java_s_names_are_translated(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(JAVA, "utf-8")
    assert options(file, "--kafka-config") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 's3"cret=x',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


@pytest.mark.feature("X5")
def test_librdkafka_s_names_stay_and_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=PLAIN\nsasl.username=u\nsasl.password=p=1\n")
    found = options(file, "LAPSE_KAFKA_CONFIG")
    assert found == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p=1",
    }
    Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **found})


@pytest.mark.feature("X5", "X7")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sasl.pasword=s3cret", "know no option sasl.pasword; did you mean sasl.password?"),
        ("securty.protocol=SSL", "know no option securty.protocol; did you mean security.protocol?"),
        ("wholly.unheard=s3cret", "know no option wholly.unheard. Correct it"),
        ("ssl.truststore.location=/etc/s3cret.jks", "ssl.truststore.location has no counterpart .*type=PEM"),
        ("sasl.jaas.config=Krb5LoginModule s3cret;", "sasl.jaas.config has no counterpart"),
        ("s3cret", "line 1: expected name=value"),
    ],
)
def test_what_is_wrong_is_reported_with_its_file_and_no_secret(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{line}\n")
    with pytest.raises(LapseError, match=message) as caught:
        options(file, "--kafka-config")
    assert str(file) in str(caught.value)
    assert "s3cret" not in str(caught.value)
