"""Translates `[security]` into the settings of aiokafka, Faust and librdkafka (X5)."""

from __future__ import annotations

import os
from typing import Any

from lapse.config.root import SecurityConfig


def password(security: SecurityConfig) -> str | None:
    """Return the SASL password from `LAPSE_SASL_PASSWORD`, or else from the file; None without one."""
    from_environment = os.environ.get("LAPSE_SASL_PASSWORD")
    if from_environment:
        return from_environment
    return None if security.password is None else security.password.get_secret_value()


def for_aiokafka(security: SecurityConfig) -> dict[str, Any]:
    """Return settings for aiokafka's clients."""
    from aiokafka.helpers import create_ssl_context  # not installed without the extra `worker`

    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        settings["ssl_context"] = create_ssl_context(
            cafile=security.ca_file, certfile=security.certificate_file, keyfile=security.key_file
        )
    if security.protocol.startswith("SASL"):
        settings |= {
            "sasl_mechanism": security.sasl_mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": password(security),
        }
    return settings


def for_faust(security: SecurityConfig) -> Any:
    """Return credentials for Faust's consumer; None if it needs none."""
    import faust  # not installed either

    if security.protocol == "PLAINTEXT":
        return None
    settings = for_aiokafka(security)
    if security.protocol == "SSL":
        return faust.SSLCredentials(settings["ssl_context"])
    return faust.SASLCredentials(
        username=security.username,
        password=password(security),
        mechanism=security.sasl_mechanism,
        ssl_context=settings.get("ssl_context"),
    )


def for_librdkafka(security: SecurityConfig) -> dict[str, Any]:
    """Return settings for confluent-kafka's clients."""
    settings: dict[str, Any] = {"security.protocol": security.protocol}
    files = {
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
    }
    settings |= {name: path for name, path in files.items() if path is not None}
    if security.protocol.startswith("SASL"):
        settings |= {
            "sasl.mechanism": security.sasl_mechanism,
            "sasl.username": security.username or "",
            "sasl.password": password(security) or "",
        }
    return settings
