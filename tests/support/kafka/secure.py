"""Starts a broker with TLS and passwords. Its stores are made here: the JDK's keytool would start a JVM for each."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12

from support.kafka.prepared import PreparedKafka

USER = "lapse"
PASSWORD = "s3cret-of-the-tests"
STORE_PASSWORD = "s3cret-of-the-store"
_ENCRYPTED = BestAvailableEncryption(STORE_PASSWORD.encode())
_LISTENER = "listener.name.sasl_ssl"


@dataclass(frozen=True, slots=True)
class SecureKafka:
    """The addresses of the broker, and the options of its clients.

    Attributes:
        plain: an address without TLS and passwords, for the other steps of a test.
        servers: the address under test: SASL_SSL, with SCRAM-SHA-512 and PLAIN.
        ca_file: the certificate to trust, PEM.
    """

    plain: str
    servers: str
    ca_file: Path

    def java_properties(self, directory: Path, password: str = PASSWORD) -> Path:
        """Write a properties file for Kafka's own tools."""
        file = directory / "client.properties"
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.ca_file}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
            f'    username="{USER}" password="{password}";\n'
        )
        file.chmod(0o600)
        return file

    def options_of(self, user: str, password: str) -> dict[str, str]:
        """Return the client options of another user."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca_file),
        }

    def client_options(self, password: str = PASSWORD) -> dict[str, str]:
        """Return the options of lapse's client and of other clients on librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca_file),
        }


@contextmanager
def secure_kafka(directory: Path, others: Mapping[str, str] = {}) -> Iterator[SecureKafka]:
    """Start a broker with the user `USER`. Write its key and certificate to the directory.

    With `others`, passwords by name, it has an authorizer: these users may only do what ACLs allow.
    """
    store, ca_file = _certificate(directory)
    port = free_port()
    address = f"SASL_SSL://127.0.0.1:{port}"
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{{client}},CONTROLLER://127.0.0.1:{{controller}},{address}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{{client}},{address}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        f"{_LISTENER}.ssl.keystore.type": "PKCS12",
        f"{_LISTENER}.ssl.keystore.location": str(store),
        f"{_LISTENER}.ssl.keystore.password": STORE_PASSWORD,
        f"{_LISTENER}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"{_LISTENER}.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}"'
            f"{''.join(f' user_{name}={chr(34)}{password}{chr(34)}' for name, password in others.items())};"
        ),
    }
    if others:
        properties |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
        }
    with PreparedKafka(properties=properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
        admin.alter_user_scram_credentials([user])[USER].result(30)
        yield SecureKafka(broker.bootstrap_servers, f"127.0.0.1:{port}", ca_file)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def stores(directory: Path, known: Path) -> tuple[Path, Path]:
    """Make the stores of a broker: its own key, and the certificate of a client that it knows."""
    trusted = directory / "known.p12"
    certificate = pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(known.read_bytes()), b"known")
    trusted.write_bytes(pkcs12.serialize_java_truststore([certificate], _ENCRYPTED))
    return _certificate(directory)[0], trusted


def _certificate(directory: Path) -> tuple[Path, Path]:
    """Make a key with a self-signed certificate for 127.0.0.1. Return its store and the certificate's file."""
    store, ca_file = directory / "broker.p12", directory / "ca.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"broker", key, certificate, None, _ENCRYPTED))
    ca_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    return store, ca_file
