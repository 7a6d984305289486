"""A worker that restores the shards of one entity slowly.

python slow_restore.py lapse.toml <data directory> <entity> <seconds>
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from lapse.cli.worker import serve
from lapse.config import load
from lapse.protocol import topic as names
from lapse.runtime.journal.store import JournalStore


def main() -> None:
    path, data_dir, entity, seconds = sys.argv[1:]
    take_over = JournalStore._take_over

    async def late(store: Any, *shard: Any) -> None:
        if store.table_name == names.table(entity):
            await asyncio.sleep(float(seconds))
        await take_over(store, *shard)

    JournalStore._take_over = late  # type: ignore[method-assign]
    config = load(Path(path))
    serve(config.model_copy(update={"lapse": config.lapse.model_copy(update={"data_dir": data_dir})}), "info")


if __name__ == "__main__":
    main()
