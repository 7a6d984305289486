"""`lapse.testing` needs no package that only workers have: a project that tests its client has none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import sys
for name in ("aiokafka", "faust", "mode", "pyspark", "numba", "prometheus_client"):
    sys.modules[name] = None
import lapse.testing
with lapse.testing.Lapse() as lapse:
    lapse.queue("jobs")
    lapse.publisher().publish("jobs", b"a")
"""


@pytest.mark.slow
@pytest.mark.feature("X8")
def test_it_works_without_the_packages_of_a_worker() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
