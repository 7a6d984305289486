"""A worker that loses the shards of one entity while it takes them over for the first time.

python fenced.py lapse.toml <data directory> <entity>
"""

import sys
from pathlib import Path
from typing import Any

from lapse.cli.worker import serve
from lapse.config import load
from lapse.core.shard.changelog import claim_key, epoch_header
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.queue_entity import QueueEntity


def main() -> None:
    path, data_dir, name = sys.argv[1:]
    build, lost = QueueEntity.machine, set[int]()

    async def build_late(entity: Any, partition: int, epoch: int, *found: Any) -> QueueMachine:
        machine = await build(entity, partition, epoch, *found)
        if entity.name == name and partition not in lost:
            lost.add(partition)
            claim = [(claim_key(epoch + 1), b"another worker")]
            changelog, headers = entity._store().changelog_topic, epoch_header(epoch + 1)
            sent, _ = await entity.journal_producer.send_atomically(changelog, partition, claim, headers)
            await sent
        return machine

    QueueEntity.machine = build_late  # type: ignore[method-assign,assignment]
    config = load(Path(path))
    serve(config.model_copy(update={"lapse": config.lapse.model_copy(update={"data_dir": data_dir})}), "info")


if __name__ == "__main__":
    main()
