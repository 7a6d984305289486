"""Reads the cluster from `lapse.toml`, as options of Kafka's Java client and of librdkafka (X5)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lapse.protocol.broker_address import DEFAULT_SERVERS

DEFAULT: Final = Path("lapse.toml")
_DEFAULT_APP_ID: Final = "lapse"

_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM: Final = "scram.ScramLoginModule"


def read(path: Path) -> tuple[str, dict[str, str], dict[str, str]]:
    """Read the brokers and the security options.

    Returns:
        The addresses, the options of Kafka's Java client, and the options of librdkafka.

    Raises:
        OSError: the file, or one that it names, cannot be read.
        ValueError: the file is not valid; `lapse check` names the fault.
    """
    tree = _tree(path)
    servers = _table(tree, "lapse", path).get("bootstrap_servers", DEFAULT_SERVERS)
    security = _table(tree, "security", path)
    settings = [servers, *security.values()]
    if not all(isinstance(value, str) for value in settings):
        raise ValueError(f"{path}: bootstrap_servers and what [security] says are texts; `lapse check` names the fault")
    java, librdkafka = _tls(security)
    if (protocol := security.get("protocol", "PLAINTEXT")).startswith("SASL"):
        mechanism, user = security.get("sasl_mechanism", "PLAIN"), security.get("username", "")
        password = os.environ.get("LAPSE_SASL_PASSWORD") or security.get("password", "")
        module = f"org.apache.kafka.common.security.{_MODULES.get(mechanism, _SCRAM)}"
        java["sasl.mechanism"] = librdkafka["sasl.mechanism"] = mechanism
        java["sasl.jaas.config"] = f"{module} required username={_quoted(user)} password={_quoted(password)};"
        librdkafka |= {"sasl.username": user, "sasl.password": password}
    if protocol != "PLAINTEXT":
        java["security.protocol"] = librdkafka["security.protocol"] = protocol
    return str(servers), java, librdkafka


def queues(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the settings of the file's queues by name, without checking them.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no TOML, or its queues are not tables.
    """
    found = _table(_tree(path), "queue", path)
    return {name: _table(found, name, path) for name in found}


def expiration(path: Path, entity: str) -> str | None:
    """Return the setting `expiration` of a queue or SOW topic; None if the file does not have the entity.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not valid; `lapse check` names the fault.
    """
    tree = _tree(path)
    for kind in ("queue", "sow"):
        found = _table(tree, kind, path)
        if entity in found:
            return str(_table(found, entity, path).get("expiration", "disabled"))
    return None


def app_id(path: Path) -> str:
    """Return the deployment's `app_id`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no TOML, or the name is no text.
    """
    found = _table(_tree(path), "lapse", path).get("app_id", _DEFAULT_APP_ID)
    if not isinstance(found, str):
        raise ValueError(f"{path}: [lapse] app_id is a text; `lapse check` names the fault")
    return found


def _tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file; name the deployment's lapse.toml with --config") from error
    except (ValueError, RecursionError) as error:  # not TOML, a number that is too long, or nested too deep
        raise ValueError(f"{path}: {error}") from error


def _tls(security: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    java: dict[str, str] = {}
    librdkafka: dict[str, str] = {}
    if authorities := security.get("ca_file"):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authorities}
        librdkafka["ssl.ca.location"] = authorities
    certificate, key = security.get("certificate_file"), security.get("key_file")
    if certificate and key:
        # Java takes both from one file, or inline.
        java["ssl.keystore.type"] = "PEM"
        java["ssl.keystore.certificate.chain"] = Path(certificate).read_text("ascii")
        java["ssl.keystore.key"] = Path(key).read_text("ascii")
        librdkafka |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
    return java, librdkafka


def _table(tree: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = tree.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}: {name} is no table")
    return table


def _quoted(text: str) -> str:
    """Quote a text for JAAS."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
