"""A worker whose questions about topics get no answer from some instant on, as from brokers that stand still.

python unanswered.py lapse.toml <data directory> <file that begins it>
"""

import sys
import time
from pathlib import Path
from typing import Any

from lapse.cli.worker import serve
from lapse.config import load
from lapse.runtime.topics.topic_id import TopicIds

_SILENT_S = 90.0


def main() -> None:
    path, data_dir, begins = sys.argv[1:]
    describe = TopicIds._describe

    def late(ids: Any, names: list[str]) -> Any:
        if Path(begins).exists():
            print("unanswered", flush=True)
            time.sleep(_SILENT_S)
        return describe(ids, names)

    TopicIds._describe = late  # type: ignore[method-assign]
    config = load(Path(path))
    serve(config.model_copy(update={"lapse": config.lapse.model_copy(update={"data_dir": data_dir})}), "info")


if __name__ == "__main__":
    main()
