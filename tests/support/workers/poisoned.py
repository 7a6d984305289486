"""A worker whose decoder and filters crash the process, as a fault in C code would.

A payload that contains `poison` is read through a null pointer, and so is a command with such a filter. All else is as
in any worker.

    python poisoned.py lapse.toml <data directory>
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapse.cli.worker import serve
from lapse.config import QueueConfig, load
from lapse.core.queue.command import QueueCommands
from lapse.runtime.sow.settings import JSON


def faulty(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Return a decoder that crashes the process on some payloads."""

    def parse_or_end(data: bytes) -> object:
        if b"poison" in data:
            ctypes.string_at(0)
        return parse(data)

    return parse_or_end


def main() -> None:
    path, data_dir = sys.argv[1:]
    JSON["parse"] = faulty(JSON["parse"])
    settings, handle = QueueConfig.settings, QueueCommands.handle

    def faulty_settings(self: QueueConfig, *of: Any) -> Any:
        made = settings(self, *of)
        return replace(made, parse=faulty(made.parse))

    def faulty_handle(self: QueueCommands, command: Any, *more: Any) -> Any:
        if command.command == "purge" and "poison" in (command.filter or ""):
            ctypes.string_at(0)
        return handle(self, command, *more)

    QueueConfig.settings = faulty_settings  # type: ignore[method-assign]
    QueueCommands.handle = faulty_handle  # type: ignore[method-assign]
    config = load(Path(path))
    own = config.lapse.model_copy(update={"data_dir": data_dir})
    serve(config.model_copy(update={"lapse": own}), "info")


if __name__ == "__main__":
    main()
