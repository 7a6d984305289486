"""The sample `lapse.toml` that `lapse dev` writes if there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SAMPLE: Final = """# Written by `lapse dev`. Change it while that runs: it applies the file again when it changes.
# All keys: docs/configuration.md of lapse.

[queue.orders]                  # messages of the topic orders, each for one consumer
expiration = "10m"              # the lifetime of messages that state none
lease_period = "30s"            # so long a consumer may take before the message goes to another
max_deliveries = 5              # then it goes to dlq.orders

[sow.prices]                    # the latest record of each key on the topic prices
expiration = "1h"
"""


def write(path: Path) -> bool:
    """Write the sample to `path` unless the file exists; return whether it was written.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(SAMPLE)
    except FileExistsError:
        return False
    return True
