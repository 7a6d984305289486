import pytest

from lapse.config import loads
from lapse.runtime.kafka import security
from lapse_spark import Connection
from lapse_spark.read import Span

pytestmark = pytest.mark.feature("X5")


def test_client_options_are_passed_through_and_not_shown(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        "# comment\n\nsecurity.protocol = SASL_SSL\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=org.apache.Plain required \\\n    username="u" password="s3cret=x";\n'
        "ssl.truststore.location: /etc/trust\n"
    )
    connection = Connection.from_file("broker:9093", file)
    options = connection.reading()
    assert options["kafka.bootstrap.servers"] == "broker:9093"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == 'org.apache.Plain required username="u" password="s3cret=x";'
    assert options["kafka.ssl.truststore.location"] == "/etc/trust"
    assert "s3cret" not in repr(connection)
    assert connection.writing()["kafka.acks"] == "all"


def test_committed_records_only_unless_asked_otherwise():
    assert Connection("b:1").reading()["kafka.isolation.level"] == "read_committed"
    assert (
        Connection("b:1", {"isolation.level": "read_uncommitted"}).reading()["kafka.isolation.level"]
        == "read_uncommitted"
    )


@pytest.mark.feature("X7")
def test_faults_name_the_place_and_never_the_secret(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("a=b\ns3cret\n")
    with pytest.raises(ValueError, match=r"client.properties, line 2") as caught:
        Connection.from_file("b:1", file)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ValueError, match="startingOffsets"):
        Connection("b:1", {"auto.offset.reset": "latest"})
    with pytest.raises(ValueError, match="KAFKA_BOOTSTRAP_SERVERS"):
        Connection(" ")


def test_a_span_in_the_words_of_the_source():
    assert Span().source_options() == {"failOnDataLoss": "true", "startingOffsets": "earliest"}
    stream = Span(streaming=True, max_records_per_batch=5, fail_on_data_loss=False).source_options()
    assert stream["maxOffsetsPerTrigger"] == "5"
    assert stream["failOnDataLoss"] == "false"
    assert Span(start_ms=5, end_ms=9).source_options()["startingTimestamp"] == "5"
    with pytest.raises(ValueError, match="a stream has no end"):
        Span(streaming=True, end_ms=9).source_options()


def test_the_client_of_lapse_reaches_the_same_cluster(monkeypatch):
    monkeypatch.delenv("LAPSE_KAFKA_CONFIG", raising=False)
    java = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": r'org.apache.ScramLoginModule required username="u" password="s3\"cret=x";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "fetch.max.bytes": "1000",
    }
    client = Connection("broker:9093", java).of_lapse()
    assert client.bootstrap_servers == "broker:9093"
    assert dict(client.options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 's3"cret=x',
        "ssl.ca.location": "/etc/ca.pem",
    }
    with pytest.raises(ValueError, match="ssl.truststore.location has no counterpart"):
        Connection("b:1", {"ssl.truststore.location": "/etc/trust.jks"}).of_lapse()


LAPSE_TOML = """
[lapse]
bootstrap_servers = "broker:9093"

[security]
protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
username = "spark"
password = 's3"cr\\et'
ca_file = "{directory}/ca.pem"
certificate_file = "{directory}/own.pem"
key_file = "{directory}/own.key"
"""


@pytest.mark.feature("X5")
def test_lapse_toml_says_how_to_reach_the_cluster(tmp_path, monkeypatch):
    for name in ("LAPSE_KAFKA_CONFIG", "LAPSE_SASL_PASSWORD", "KAFKA_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ca.pem", "own.pem", "own.key"):
        (tmp_path / name).write_text(f"content of {name}")
    file = tmp_path / "lapse.toml"
    file.write_text(LAPSE_TOML.format(directory=tmp_path))
    found = Connection.from_lapse_toml("", file)
    assert found.bootstrap == "broker:9093"
    assert Connection.from_lapse_toml("other:1", file).bootstrap == "other:1"
    assert found.client["security.protocol"] == "SASL_SSL"
    assert found.client["ssl.truststore.type"] == "PEM"
    assert found.client["ssl.truststore.location"] == str(tmp_path / "ca.pem")
    assert found.client["ssl.keystore.certificate.chain"] == "content of own.pem"
    assert found.client["ssl.keystore.key"] == "content of own.key"
    assert found.client["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="spark" password="s3\"cr\\et";'
    )
    of_worker = security.for_librdkafka(loads(file.read_text(), str(file), tmp_path).security)  # no real certificates
    assert dict(found.of_lapse().options) == of_worker, "as the worker speaks to the cluster"
    assert "s3" not in repr(found)
    monkeypatch.setenv("LAPSE_SASL_PASSWORD", "other")
    assert 'password="other"' in Connection.from_lapse_toml("", file).client["sasl.jaas.config"]


@pytest.mark.feature("X5", "X7")
@pytest.mark.parametrize(
    "text", ["lapse = 1", "[lapse]\nbootstrap_servers = 5", "[security", "[security]\nca_file = 1"]
)
def test_a_wrong_lapse_toml_is_named(tmp_path, text):
    file = tmp_path / "lapse.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"lapse\.toml: "):
        Connection.from_lapse_toml("", file)
