"""The `lapse` command, also as `python -m lapse`; where its packages are missing, it says how to install them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from lapse.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(
            f"The command line needs the Python package {error.name}, which is not installed. "
            "Install it with: pip install 'lapse[cli]'"
        )
    run()


if __name__ == "__main__":
    main()
