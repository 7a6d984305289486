"""Files of client properties, as Kafka's own tools take them. Java's option names are translated to librdkafka's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Producer

from lapse_client.error import LapseError

_CONTINUED = re.compile(r"\\\r?\n[ \t]*")
_PROPERTY = re.compile(r"\s*(?P<name>[^\s=:#!][^\s=:]*)\s*[=:\s]\s*(?P<value>.*?)\s*\Z", re.ASCII)
_LOGIN = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;]+))""")
_STORE: Final = re.compile(r"ssl\.(truststore|keystore)\.")

_UNHEARD_OF: Final = "lapse.unheard.of"
"""An option that does not exist, given after the option under test, so that no client is ever made."""

_JAAS: Final = "sasl.jaas.config"

_PEM: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Java's options for inline certificates and keys, with librdkafka's names."""

_JAVA_ONLY: Final = frozenset(
    """
    auto.include.jmx.reporter client.dns.lookup default.api.timeout.ms exclude.internal.topics
    fetch.max.wait.ms group.protocol interceptor.classes key.deserializer key.serializer max.poll.records
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
    request.timeout.ms send.buffer.bytes ssl.enabled.protocols ssl.keymanager.algorithm
    ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm value.deserializer
    value.serializer max.block.ms max.request.size buffer.memory partitioner.class delivery.timeout.ms
    """.split()
)
"""Options that only Java's client knows, and that lapse's clients do not need. They are ignored."""

_KNOWN: Final = (
    """
    bootstrap.servers client.id client.rack connections.max.idle.ms metadata.max.age.ms reconnect.backoff.ms
    reconnect.backoff.max.ms retry.backoff.ms socket.timeout.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable broker.address.family security.protocol sasl.mechanism sasl.mechanisms sasl.username
    sasl.password sasl.jaas.config sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.keytab
    sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.key.location ssl.key.pem ssl.key.password ssl.cipher.suites ssl.endpoint.identification.algorithm
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.truststore.location ssl.truststore.password
    ssl.truststore.type enable.ssl.certificate.verification
    """.split()
    + list(_PEM)
)
"""Names that are proposed for a misspelt one."""


def read(path: Path) -> dict[str, str]:
    """Read a file of `name=value` lines as Java does: with `=`, `:` or a space, and with continuation lines.

    Raises:
        ValueError: a line has no name and value. The text does not show the line, because it may be secret.
        OSError: the file cannot be read.
    """
    found: dict[str, str] = {}
    text = _CONTINUED.sub("", path.read_text("utf-8"))
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        match = _PROPERTY.match(line)
        if match is None:
            raise ValueError(f"{path}, line {number}: expected name=value")
        found[match["name"]] = match["value"]
    return found


def options(path: Path, named: str) -> dict[str, str]:
    """Read a file of client properties, and return librdkafka's options for them.

    Args:
        path: the file.
        named: the option or environment variable that names the file, for error messages.

    Raises:
        LapseError: the file cannot be read, or an option is unknown or has no counterpart.
    """
    try:
        given = read(path)
        found = translated({name: value for name, value in given.items() if name not in _JAVA_ONLY})
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise LapseError(f"{named} = {path}: cannot be read: {reason}") from error
    except ValueError as error:
        text = str(error)
        raise LapseError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    for name in found:
        if not _is_known(name):
            from difflib import get_close_matches  # only for faults

            close = get_close_matches(name, _KNOWN, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise LapseError(f"{path}: lapse's clients know no option {name}{meant or '.'} Correct it, or leave it out")
    return found


def translated(java: Mapping[str, str]) -> dict[str, str]:
    """Translate Java's options to librdkafka's. Options with the same name in both are kept.

    Raises:
        ValueError: an option has no counterpart.
    """
    found: dict[str, str] = {}
    for name, value in java.items():
        if name == _JAAS:
            login = _LOGIN.findall(value)
            if len(login) != 2:
                raise _unsupported_option(name, "It takes a user name and a password")
            found |= {f"sasl.{what}": re.sub(r"\\(.)", r"\1", quoted) or plain for what, quoted, plain in login}
        elif name in _PEM:
            found[_PEM[name]] = value
        elif store := _STORE.match(name):
            found |= _translate_store(java, store[1], name, value)
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = value or "none"
        else:
            found[name] = value
    return found


def _translate_store(java: Mapping[str, str], store: str, name: str, value: str) -> dict[str, str]:
    """Translate an option of a key store or trust store: PEM files, and PKCS #12 for the client's own key."""
    kind = java.get(f"ssl.{store}.type", "").upper()
    if name == f"ssl.{store}.type":
        return {}
    if kind == "PEM" and name == f"ssl.{store}.location":
        if store == "truststore":
            return {"ssl.ca.location": value}
        return {"ssl.certificate.location": value, "ssl.key.location": value}
    if kind == "PKCS12" and store == "keystore":
        return {name: value}
    if store == "keystore" and not kind:
        return {name: value}  # librdkafka's own option of this name, which is for PKCS #12
    raise _unsupported_option(name, f"Give ssl.{store}.type=PEM and a PEM file; keytool makes one of a store")


def _unsupported_option(name: str, what_to_do: str) -> ValueError:
    return ValueError(
        f"option {name} has no counterpart in lapse's client. {what_to_do}; or say it in librdkafka's words, in the "
        "file of LAPSE_KAFKA_CONFIG"
    )


def _is_known(name: str) -> bool:
    """Return whether librdkafka has an option of this name. The value is checked when a client is made."""
    try:
        Producer({"log_level": 0, name: "", _UNHEARD_OF: ""})
    except KafkaException as error:
        return f'No such configuration property: "{name}"' not in error.args[0].str()
    return True
