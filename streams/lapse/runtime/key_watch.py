"""Reads the keys of users and workers again when their files change (X4)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from lapse.config import ConfigError, key
from lapse.config.key import Keys
from lapse.config.root import Config

logger = logging.getLogger(__name__)

_EVERY_S: Final = 2.0

_Stamp = tuple[int, int, int]


class KeyWatch:
    """Looks at the key files of a configuration, and puts changed keys into force.

    A file that cannot be read, or holds no good key, is logged once, and all keys stay as they were.

    Args:
        config: names the files.
        keys: the keys in force; they are changed in place.
    """

    def __init__(self, config: Config, keys: Keys) -> None:
        self._config = config
        self._keys = keys
        self._seen = self._stamps()

    async def run(self) -> None:
        """Look for as long as the worker runs."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.look()

    def look(self) -> None:
        """Read the keys again if a file has changed."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            found = key.read(self._config)
        except ConfigError as error:
            logger.warning("The keys that were read before stay in force: %s", error)
            return
        changed = self._keys.replace(found)
        if changed:
            logger.info("Changed keys are in force: those of %s", ", ".join(changed))
            for warning in key.exposure_warnings(self._config):
                logger.warning("%s", warning)

    def _stamps(self) -> dict[str, _Stamp | None]:
        return {file: _stamp(file) for file in key.signing_files(self._config)}


def _stamp(file: str) -> _Stamp | None:
    """Return facts that change with a file's content; None if the file cannot be looked at."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
