"""An archive of the classes of Kafka's broker, for the many that a run of all tests starts, and a checkpoint."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lapse.embedded import EmbeddedKafka
from lapse.embedded.class_archive import QUICK, VARIABLE, beside, recording
from lapse.embedded.settings import CHECKPOINT


class BrokerClasses:
    """Writes the archive beside the first tests; a broker that starts before it is there does without.

    It belongs to the process that hands tests out to others.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lapse-classes-"))
        os.environ[VARIABLE] = str(self._directory / "kafka.jsa")
        self._writing = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """End it, and leave nothing behind."""
        self._writing.terminate()
        self._writing.wait()
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(self._directory, ignore_errors=True)


def _write(path: Path) -> None:
    """Start a broker, and stop it; archive and checkpoint appear when they are whole."""
    unfinished = path.with_suffix(".unfinished")
    with EmbeddedKafka(java_options=[*QUICK, *recording(unfinished)]) as kafka:
        copy = Path(shutil.copyfile(kafka.data / "log" / CHECKPOINT, path.with_suffix(".copy")))
        copy.replace(beside(path))
    unfinished.replace(path)


if __name__ == "__main__":
    _write(Path(os.environ[VARIABLE]))
