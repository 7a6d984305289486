"""Marks for tests of `columns.c` and `record_columns.c`."""

import pytest

from lapse.runtime.kafka import columns
from lapse_client.kafka import rdkafka

# Without a C compiler lapse takes records as objects and packs them in Python. The tests of that run everywhere.
NEEDS_COLUMNS = pytest.mark.skipif(
    columns.LIBRARY is None, reason="columns.c is not built: there was no C compiler, or it is older than its source"
)
NEEDS_RECORD_COLUMNS = pytest.mark.skipif(
    rdkafka.LOADED is None,
    reason="record_columns.c is not built: there was no C compiler, or it is older than its source",
)
