"""A worker that allows the filters of commands and subscriptions a tenth of a second of CPU, or half of it.

It tells of refusals that it only counted after 5 s instead of a minute.

The limits are no settings, and reaching the real ones takes too long for a test. All else is as in any worker.

    python stern.py lapse.toml <data directory>
"""

import sys
from pathlib import Path

from lapse.cli.worker import serve
from lapse.config import load
from lapse.runtime.authorization import refusal_log
from lapse.runtime.shard import command_work, standing_filter


def main() -> None:
    path, data_dir = sys.argv[1:]
    command_work.MOST_S = 0.05  # type: ignore[misc]
    standing_filter._MOST_S = 0.1  # type: ignore[misc]
    standing_filter._EACH_S = 0.0  # type: ignore[misc]
    refusal_log._PERIOD_S = 5.0  # type: ignore[misc]
    config = load(Path(path))
    serve(config.model_copy(update={"lapse": config.lapse.model_copy(update={"data_dir": data_dir})}), "info")


if __name__ == "__main__":
    main()
