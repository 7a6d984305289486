"""A worker whose temporary queues and SOW topics are idle after some hundred milliseconds instead of minutes.

`lapse.toml` refuses less than five minutes, so the value is set after that check, in the worker's configuration.
Definitions of clients may have as short a time. Fewer records wait in memory. A worker that creates an entity whose
name begins with `cut` dies once, after it has created the topics and before it writes the definition. All else is as in
any worker.

    python impatient.py lapse.toml <data directory> <idle time in ms>
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import lapse.config.entity_config
from lapse.cli.worker import serve
from lapse.config import load
from lapse.config.decided_entities import decide
from lapse.runtime.shard import saturation
from lapse.runtime.topics import definer
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.runtime.topics.difference import Difference


def dying(mend: Callable[..., None], died: Path) -> Callable[..., None]:
    """Return `create_and_grant` that kills the process once, after it created the topics of an entity called `cut…`."""

    def mend_and_die(cluster: object, differences: list[Difference]) -> None:
        mend(cluster, differences)
        if not died.exists() and any(one.topic.startswith("cut") for one in differences):
            died.touch()
            os._exit(9)

    return mend_and_die


def main() -> None:
    path, data_dir, idle_ms = sys.argv[1:]
    config = load(Path(path))
    vars(definer)["create_and_grant"] = dying(definer.create_and_grant, Path(path).parent / "died")
    vars(lapse.config.entity_config)["LEAST_IDLE_MS"] = int(idle_ms)
    vars(saturation)["_SATURATED_RECORDS"] = 1_000
    idle = {"auto_delete_on_idle": int(idle_ms)}
    impatient = {
        kind: {
            name: one if one.auto_delete_on_idle is None else one.model_copy(update=idle)
            for name, one in getattr(config, kind).items()
        }
        for kind in ("queue", "sow")
    }
    if config.lapse.definitions == "topic":
        decided = decide(Path(path), config, DefinitionsTopic(config).read())
        own = decided.config.lapse.model_copy(update={"data_dir": data_dir})
        serve(decided.config.model_copy(update={"lapse": own}), "info", decided=decided)
        return
    own = config.lapse.model_copy(update={"data_dir": data_dir})
    serve(config.model_copy(update={**impatient, "lapse": own}), "info")


if __name__ == "__main__":
    main()
