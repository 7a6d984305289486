"""Refused files like `transfer.toml` and `replicate.toml`: cases of test_bad_links.py and docs/bad-input.md."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from lapse.config.document import ConfigError
from lapse.replication import link as replication
from lapse.transfer import link as transfer


class Case(NamedTuple):
    """A file that is refused.

    Attributes:
        name: of the file.
        text: its wrong part. What has to be given besides stands before it.
    """

    name: str
    text: str

    @property
    def shown(self) -> str:
        """The wrong part, as the page shows it."""
        return f"`{self.name}`: `{'`, `'.join(self.text.splitlines())}`"

    @property
    def message(self) -> str:
        """The error, without the directory."""
        rest = {"to": '"there:9092"', "from": '"here:9092"', "topics": '["prices"]'}
        needed = [*rest] if self.name == "replicate.toml" else ["to"]
        before = [f"{key} = {rest[key]}" for key in needed if not self.text.startswith((f"{key} ", f"# {key} "))]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, self.name)
            path.write_text("\n".join([*before, self.text]))
            try:
                if self.name == "replicate.toml":
                    replication.load(path)
                else:
                    transfer.load(path, {})
            except ConfigError as error:
                return str(error).replace(f"{folder}/", "")
        return ""


CASES: Final = [
    *(
        Case("transfer.toml", text)
        for text in (
            "# to is missing",
            "to = 5",
            'too = "there:9092"',
            "from = 5",
            'source = "here:9092"',
            'target = "elsewhere:9092"',
            "to_queue = 'a b'",
            "to_topic = 'a/b'",
            "max_clock_skew = 1",
            'from_security = "SSL"',
            '[from_security]\nprotocol = "TLS"',
            '[from_security]\nprotocl = "SSL"',
            '[to_security]\nprotocol = "SASL_SSL"',
            "[to_security]\npassword = 5",
            '[to_security]\nca_file = "nowhere.pem"',
            '[to_security]\ncertificate_file = "me.pem"',
        )
    ),
    *(
        Case("replicate.toml", text)
        for text in (
            "# from is missing",
            "# to is missing",
            "# topics is missing",
            'from = ""',
            'upstream = "elsewhere:9092"',
            'downstream = "elsewhere:9092"',
            "to = 5",
            'topics = "prices"',
            "topics = []",
            "topics = [[1]]",
            'topics = ["prices", "prices"]',
            'topics = ["a b"]',
            "topics = { prices = 5 }",
            'topics = { prices = "lapse.sow.prices" }',
            'topics = { prices = "raw", quotes = "raw" }',
            "replication_factor = 0",
            "replicas = 3",
            "from_security = 5",
            '[to_security]\nprotocol = "SASL_SSL"',
        )
    ),
]
