"""How doctor asks where workers stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.feature("X7")
def test_no_group_is_asked_for_its_offsets_through_librdkafkas_admin_client() -> None:
    """It ends the process (SIGSEGV in `rd_kafka_cgrp_op`) while the group's coordinator is not ready: a new cluster."""
    for file in (*(ROOT / "streams").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")):
        calls = re.findall(r"^.*\.list_consumer_group_offsets\(.*$", file.read_text("utf-8"), re.MULTILINE)
        assert all("await" in call for call in calls), f"{file}: aiokafka's may be asked, librdkafka's may not"
