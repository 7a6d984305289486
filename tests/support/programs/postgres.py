"""Runs a PostgreSQL for a test if the machine has one. Root runs it as the user `postgres`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BINARIES = Path("/usr/lib/postgresql")


def binaries() -> Path | None:
    """Return the directory of `initdb` and `pg_ctl`, or None if there is no PostgreSQL."""
    if (found := shutil.which("pg_ctl")) is not None:
        return Path(found).parent
    return max((one.parent for one in _BINARIES.glob("*/bin/pg_ctl")), default=None)


@contextmanager
def running(there: Path) -> Iterator[dict[str, str]]:
    """Start a server that listens on a socket only. Yield the environment variables for its clients."""
    directory = Path(tempfile.mkdtemp(prefix="lapse-postgres-"))
    as_postgres: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres")
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    data = directory / "data"

    def run(program: str, *arguments: str) -> None:
        command = [*as_postgres, str(there / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=directory, timeout=60)

    run("initdb", "-D", str(data), "-U", "lapse", "-A", "trust", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off"
    run("pg_ctl", "-D", str(data), "-o", options, "-l", str(directory / "log"), "-w", "start")
    try:
        yield {"PGHOST": str(directory), "PGUSER": "lapse", "PGDATABASE": "postgres"}
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(directory)
