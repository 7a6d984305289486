"""A mark for tests of `columns.c`."""

import pytest

from lapse.runtime.kafka import columns

# Without a C compiler lapse takes records as objects and packs them in Python. The tests of that run everywhere.
NEEDS_COLUMNS = pytest.mark.skipif(
    columns.LIBRARY is None, reason="columns.c is not built: there was no C compiler, or it is older than its source"
)
