"""A broker that asks every client for a certificate, and the files of clients that it knows and does not know."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.kafka import secure
from support.kafka.prepared import PreparedKafka

CERTIFICATE: Final = """\
-----BEGIN CERTIFICATE-----
MIIBfjCCASOgAwIBAgIUJY5uPFLs41RrxKtTWhk1QgY79Q8wCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIY2xpZW50LWEwIBcNMjYxMTI3MjIyOTU2WhgPMjEyNjExMDMy
MjI5NTZaMBMxETAPBgNVBAMMCGNsaWVudC1hMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEm38GAUtxOGQCInGwB+S0Q5+q6yhCC/mG5jAboNxY7a5HswV2IdLwbIlX
ufaBHAOs52CrAD9/QzaMRiJNw01w2KNTMFEwHQYDVR0OBBYEFP132kjev2q5ZiRu
va5KXBGjREl5MB8GA1UdIwQYMBaAFP132kjev2q5ZiRuva5KXBGjREl5MA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAPQQXfM412TBbfEjm887WCed
602Ut7CD34Jl3WB1C0wjAiEA4ssKtE98xsR0RTrYekSerhqmuWHnPkRGp38wvvPJ
8MM=
-----END CERTIFICATE-----
"""

KEY: Final = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgp+tY46cX6vy4ebuh
r5G+ICQoFsj4I+giFkPt9RQymXWhRANCAASbfwYBS3E4ZAIicbAH5LRDn6rrKEIL
+YbmMBug3FjtrkezBXYh0vBsiVe59oEcA6znYKsAP39DNoxGIk3DTXDY
-----END PRIVATE KEY-----
"""

KEY_WITH_PASSWORD: Final = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiu7bF0JAwtYgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEKiU8uFjFS9Ux7Fz57RF5WIEgZAa
zRXfyggPFABZQKsITG6fXidt0Dw3Go9mUbjlZLQ2F84Onjys+8zwfgcl2HgylVGc
QQWoxePVyNh6yI6LkJD8sJHJU7wi7InpHQzTvah8aOJwF1Yh12vwzVwx94AR2ZXa
W3apLEHDOVT+VL26196NairSP+LLTXSa7PohazhdSAPK/l4JXmSKs69rFBEMdPg=
-----END ENCRYPTED PRIVATE KEY-----
"""
"""The same key."""

STRANGE_CERTIFICATE: Final = """\
-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUeS7XSNdQeeqWxs2N9ol2lFz98FQwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIY2xpZW50LWIwIBcNMjYxMTI3MjIyOTU2WhgPMjEyNjExMDMy
MjI5NTZaMBMxETAPBgNVBAMMCGNsaWVudC1iMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAE7efHV5eEKT/95NzmwMM8+XVtU0GI7nJMJKvOTTL//uMpzWTmm41dB94F
FVDfwVFG8c4Bmyp5KyAiYTAuseJAj6NTMFEwHQYDVR0OBBYEFD+A0tFqRVHOPTNn
5iZNQ2PqnJ+EMB8GA1UdIwQYMBaAFD+A0tFqRVHOPTNn5iZNQ2PqnJ+EMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgHi2cCum9LTRHLXM8U3G3f24G
kSUyQsbR0BoQCLcs0HUCIQD8tW/IyQ+b+mpXu42YuvIyF6jdaPwx41BSnOnzMZU4
FA==
-----END CERTIFICATE-----
"""

STRANGE_KEY: Final = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgP/Z7FkMNIVIcjYBV
uqo81O4J9EVSkxALJOJC0spOeGyhRANCAATt58dXl4QpP/3k3ObAwzz5dW1TQYju
ckwkq85NMv/+4ynNZOabjV0H3gUVUN/BUUbxzgGbKnkrICJhMC6x4kCP
-----END PRIVATE KEY-----
"""


@dataclass(frozen=True, slots=True)
class MutualKafka:
    """The address of the broker, and the files of its clients.

    Attributes:
        servers: the address, which requires TLS with a certificate of the client.
        directory: has `ca.pem`, `known.pem` and `known.key`, `strange.pem` and `strange.key`.
    """

    servers: str
    directory: Path

    def options(self, who: str) -> dict[str, str]:
        """Return the client options of `known`, of `strange`, or of a client without a certificate: empty."""
        own = {"ssl.certificate.location": f"{who}.pem", "ssl.key.location": f"{who}.key"} if who else {}
        files = {"ssl.ca.location": "ca.pem", **own}
        return {"security.protocol": "SSL", **{name: str(self.directory / file) for name, file in files.items()}}

    def security(self, who: str) -> str:
        """Return the table `[security]` of the same client."""
        own = {"certificate_file": f"{who}.pem", "key_file": f"{who}.key"} if who else {}
        lines = [f'{key} = "{self.directory / file}"' for key, file in {"ca_file": "ca.pem", **own}.items()]
        return "\n".join(["[security]", 'protocol = "SSL"', *lines, ""])


def write_files(directory: Path) -> None:
    """Write certificates and keys of clients."""
    for name, text in (
        ("known.pem", CERTIFICATE),
        ("known.key", KEY),
        ("strange.pem", STRANGE_CERTIFICATE),
        ("strange.key", STRANGE_KEY),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)


@contextmanager
def mutual_kafka(directory: Path) -> Iterator[MutualKafka]:
    """Start a broker that knows one client's certificate. Write the files of its clients to the directory."""
    write_files(directory)
    broker, trusted = secure.stores(directory, directory / "known.pem")
    port = secure.free_port()
    address = f"SSL://127.0.0.1:{port}"
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{{client}},CONTROLLER://127.0.0.1:{{controller}},{address}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{{client}},{address}",
        "ssl.client.auth": "required",
    }
    for name, file in (("keystore", broker), ("truststore", trusted)):
        properties |= {
            f"ssl.{name}.type": "PKCS12",
            f"ssl.{name}.location": str(file),
            f"ssl.{name}.password": secure.STORE_PASSWORD,
        }
    with PreparedKafka(properties=properties):
        yield MutualKafka(f"127.0.0.1:{port}", directory)
