"""A worker whose temporary queues are idle after some hundred milliseconds instead of minutes.

`lapse.toml` cannot say that: less than five minutes is refused. What is refused there is set here, behind the check, in
the configuration that the worker is given; everything else is the worker as it is.

    python impatient_worker.py lapse.toml <data directory> <idle time in ms>
"""

import sys
from pathlib import Path

from lapse.cli.worker import serve
from lapse.config import load


def main() -> None:
    path, data_dir, idle_ms = sys.argv[1:]
    config = load(Path(path))
    queues = {
        name: queue.model_copy(update={"auto_delete_on_idle": int(idle_ms)})
        if queue.auto_delete_on_idle is not None
        else queue
        for name, queue in config.queue.items()
    }
    own = config.lapse.model_copy(update={"data_dir": data_dir})
    serve(config.model_copy(update={"queue": queues, "lapse": own}), "info")


if __name__ == "__main__":
    main()
