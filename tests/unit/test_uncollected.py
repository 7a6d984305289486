"""Work without the collection of garbage: it is collected again afterwards, and only if it was before."""

import gc
from contextlib import suppress

import pytest

from lapse.uncollected import uncollected


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_as_before(collects: bool) -> None:
    try:
        if not collects:
            gc.disable()
        with suppress(KeyError), uncollected():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is collects
    finally:
        gc.enable()
