"""`lapse check` and `lapse apply` beyond missing topics: what a worker would refuse, and what is perhaps not meant."""

from pathlib import Path

import pytest

from support.entitled import Entitled

REFUSED = 1


@pytest.fixture
def office(kafka: str, tmp_path: Path) -> Entitled:
    """A deployment with a user, applied."""
    deployment = Entitled(kafka, tmp_path, {})
    deployment.users = {"alice": {"entitlements": {".*": {"read": True}}}}
    deployment.configure({"orders": {}})
    deployment.apply()
    for file in tmp_path.glob("*.key"):
        file.chmod(0o600)
    return deployment


@pytest.mark.feature("X4", "X7")
def test_a_key_that_the_worker_refuses_does_not_pass_check(office: Entitled) -> None:
    assert office.lapse("check").returncode == 0
    key = office.directory / "alice.key"
    key.write_text("short\n")
    for found in (office.lapse("check"), office.lapse("check", "--json"), office.lapse("worker", "--no-supervise")):
        assert found.returncode
        assert f"users.alice: {key} holds a key of less than 16 bytes" in found.stderr
        assert "short" not in found.stderr + found.stdout
    (office.directory / "worker.key").unlink()
    found = office.lapse("check")
    assert found.returncode == REFUSED
    assert "users.alice:" in found.stderr  # every fault at once
    assert "worker.key: cannot be read: No such file" in found.stderr


@pytest.mark.feature("X4", "X7")
def test_a_key_file_that_everybody_can_read_is_told(office: Entitled) -> None:
    assert "chmod" not in office.lapse("check").stderr
    (office.directory / "alice.key").chmod(0o644)
    (office.directory / "worker.key").chmod(0o602)
    found = office.lapse("check")
    assert found.returncode == 0
    assert f"can read {office.directory}/alice.key" in found.stderr
    assert f"can change {office.directory}/worker.key" in found.stderr
    worker = office.worker().wait_for_shards(1)
    assert worker.text.count("chmod o-rwx") == 2
    assert worker.stop() == 0
