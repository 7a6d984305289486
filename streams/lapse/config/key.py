"""Keys of users and workers, read from the places that `lapse.toml` names (X4)."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lapse.config.document import ConfigError
from lapse.config.root import Config

_KAFKAS: Final = "security.key_file"
"""The setting that names the TLS key, with which no command is signed."""


@dataclass(slots=True)
class Keys:
    """The keys with which commands and shard messages are signed.

    Attributes:
        users: the keys of each user, by name.
        workers: the workers' keys. They sign with the first one.
    """

    users: dict[str, tuple[bytes, ...]] = field(repr=False)
    workers: list[bytes] = field(repr=False)

    def replace(self, others: Keys) -> list[str]:
        """Replace the keys by newly read ones of the same users, in place. Return the owners of changed keys."""
        changed = [f"user {name}" for name, keys in others.users.items() if self.users.get(name) != keys]
        if self.workers != others.workers:
            changed.append("the workers")
        self.users.update(others.users)
        self.workers[:] = others.workers
        return changed


def read(config: Config) -> Keys:
    """Read every key. Without users, no keys are needed.

    Raises:
        ConfigError: keys are missing, too short or unreadable; the message names each place, and shows no key.
    """
    if not config.users:
        return Keys({}, [])
    faults: list[str] = []

    def one(place: str, keys: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...]:
        try:
            return keys()
        except ValueError as error:
            faults.append(f"{place}: {error}")
            return ()

    users = {name: one(f"users.{name}", user.keys) for name, user in config.users.items()}
    workers = one("security.worker_key_file, which users need", config.security.worker_keys)
    if faults:
        raise ConfigError("\n".join(faults))
    return Keys(users, list(workers))


def exposure_warnings(config: Config) -> list[str]:
    """Return a warning for each key file that every user of this machine can read or change."""
    found: list[str] = []
    for place, file in _files(config):
        try:
            mode = Path(file).stat().st_mode
        except OSError:
            continue  # the code that reads the file reports this
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            done = "read" if mode & stat.S_IROTH else "change"
            found.append(
                f"{place}: every user of this machine can {done} {file}, and sign with its key. "
                f"Take that right away: chmod o-rwx {file}"
            )
    return found


def signing_files(config: Config) -> list[str]:
    """Return the files with the keys of users and workers."""
    return [file for place, file in _files(config) if place != _KAFKAS]


def _files(config: Config) -> Iterator[tuple[str, str]]:
    """Yield every file that contains a secret, after its key in `lapse.toml`."""
    if config.security.key_file is not None:
        yield _KAFKAS, config.security.key_file
    if not config.users:
        return
    if config.security.worker_key_file is not None:
        yield "security.worker_key_file", config.security.worker_key_file
    for name, user in config.users.items():
        if user.key_file is not None:
            yield f"users.{name}.key_file", user.key_file
