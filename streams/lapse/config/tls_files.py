"""The files of `[security]`: whether TLS can use them, before librdkafka or aiokafka tries (X5, X7)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lapse.config.root import SecurityConfig

_FILES: Final = ("ca_file", "certificate_file", "key_file")


def faults(security: SecurityConfig) -> Iterator[tuple[str, str]]:
    """Yield the key and the fault of each file that is missing, or is not what it should be."""
    named = {key: file for key in _FILES if (file := getattr(security, key)) is not None}
    missing = [(key, f"there is no file {file}") for key, file in named.items() if not _is_file(Path(file))]
    yield from missing
    if missing or not security.protocol.endswith("SSL"):
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if security.ca_file is not None:
        try:
            context.load_verify_locations(security.ca_file)
        except OSError as error:
            yield "ca_file", f"{security.ca_file} has no certificates in PEM ({_reason(error)})"
    if security.certificate_file is not None and security.key_file is not None:
        yield from _faults_of_pair(context, security.certificate_file, security.key_file)


def _faults_of_pair(context: ssl.SSLContext, certificate: str, key: str) -> Iterator[tuple[str, str]]:
    asked: list[bool] = []

    def no_password() -> str:  # without it, OpenSSL asks at the terminal
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:
        if asked:
            yield "key_file", f"{key} has a password; lapse takes a key without: openssl pkey -in {key} -out FILE"
        elif _reason(error) == "KEY_VALUES_MISMATCH":
            yield "key_file", f"{key} is not the key of {certificate}"
        else:
            yield "certificate_file", f"{certificate} and {key} are no certificate and key in PEM"


def _reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or error)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a directory that must not be read
        return False
