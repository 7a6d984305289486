"""How many examples a generated test looks at: a quarter in `make test`, all of them in `make chaos`."""

import os

_FEWEST = 100


def examples(at_length: int) -> int:
    """Return `at_length` where `LAPSE_SOAK` is set, as `make chaos` does, and a quarter of it elsewhere."""
    return at_length if "LAPSE_SOAK" in os.environ else max(_FEWEST, at_length // 4)
