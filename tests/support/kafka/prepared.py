"""A broker with properties of the tests, which are right: Kafka's own tool need not check them.

The tool is a JVM of its own. For a broker of users it prepares the data wherever properties are given.
"""

from pathlib import Path

from lapse.embedded import EmbeddedKafka, class_archive
from lapse.embedded.settings import prepare


class PreparedKafka(EmbeddedKafka):
    """An embedded broker whose data is prepared without another JVM, if the tests have the checkpoint for that."""

    def _prepare(self, command: list[str], server: Path) -> None:
        checkpoint = class_archive.checkpoint()
        if checkpoint is None:
            super()._prepare(command, server)
        else:
            prepare(self.data / "log", checkpoint)
