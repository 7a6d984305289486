"""The `lapse` command, also as `python -m lapse`; where its packages are missing, it says how to install them."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_STANDARD: Final = (0, 1, 2)
"""The descriptors of standard input, output and error."""


def main() -> None:
    """Run the command line."""
    _open_what_is_closed()
    try:
        from lapse.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(
            f"The command line needs the Python package {error.name}, which is not installed. "
            "Install it with: pip install 'lapse[cli]'"
        )
    try:
        run()
    finally:
        gc.freeze()  # else Python looks twice for garbage in all modules before it ends


def _open_what_is_closed() -> None:
    """Open standard streams that the caller has closed, as empty ones.

    Python has no objects for them then, and the next socket or file would get their descriptors.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # it lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
