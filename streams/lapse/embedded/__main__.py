"""`python -m lapse.embedded`: fetch all jars, and show what the broker and Spark would run on."""

import sys

from lapse.embedded.errors import EmbeddedError
from lapse.embedded.jars import DELTA, KAFKA, SPARK, jar_files
from lapse.embedded.java import find_java


def main() -> int:
    """Fetch what is missing and return the exit code."""
    try:
        for name in (KAFKA, SPARK, DELTA):
            files = jar_files(name)
            sys.stdout.write(f"{name}: {len(files)} jars, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB\n")
        java = find_java()
        sys.stdout.write(f"Java {java.version}: {java.executable}\n")
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
