"""Files of `[security]` that TLS cannot use are named with their line, before anybody connects (X5, X7)."""

from pathlib import Path

import pytest

from lapse.config import ConfigError, load
from support.kafka import mutual


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    mutual.write_files(tmp_path)
    (tmp_path / "ca.pem").write_text(mutual.STRANGE_CERTIFICATE)
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "password.key").write_text(mutual.KEY_WITH_PASSWORD)
    return tmp_path


def config(directory: Path, protocol: str, **files: str) -> Path:
    lines = [f'{key} = "{directory / file}"' for key, file in files.items()]
    path = directory / "lapse.toml"
    path.write_text("\n".join(["[security]", f'protocol = "{protocol}"', 'username = "me"', *lines]))
    return path


@pytest.mark.feature("X5", "X7")
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize(
    ("ca", "certificate", "key", "message"),
    [
        ("text.pem", "known.pem", "known.key", "lapse.toml:4: security.ca_file: {}text.pem has no certificates in PEM"),
        ("ca.pem", "known.pem", "strange.key", "lapse.toml:6: security.key_file: {}strange.key is not the key of"),
        ("ca.pem", "known.pem", "password.key", "lapse.toml:6: security.key_file: {}password.key has a password"),
        ("ca.pem", "text.pem", "known.key", "lapse.toml:5: security.certificate_file: {}text.pem and {}known.key are"),
        ("ca.pem", "known.pem", "none.key", "lapse.toml:6: security.key_file: there is no file {}none.key"),
    ],
)
def test_a_file_that_tls_cannot_use_is_named(
    directory: Path, protocol: str, ca: str, certificate: str, key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config(directory, protocol, ca_file=ca, certificate_file=certificate, key_file=key))
    assert message.replace("{}", f"{directory}/") in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.feature("X5")
def test_files_that_fit_are_taken(directory: Path) -> None:
    files = {"ca_file": "ca.pem", "certificate_file": "known.pem", "key_file": "known.key"}
    assert load(config(directory, "SSL", **files)).security.key_file == str(directory / "known.key")
    assert load(config(directory, "PLAINTEXT", ca_file="text.pem")).security.ca_file, "nobody reads it"
