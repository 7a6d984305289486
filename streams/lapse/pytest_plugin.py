"""The pytest plugin: the fixture `lapse`. It is registered as an entry point, so it imports nothing before its use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lapse.testing import Lapse


@pytest.fixture
def lapse() -> Iterator[Lapse]:
    """An empty deployment in memory; client objects without a connection of their own work on it."""
    try:
        from lapse.testing import Lapse  # only users of the fixture need these packages
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"the fixture `lapse` needs {error.name}, which is not installed: pip install 'lapse[testing]'"
        ) from error

    with Lapse() as deployment:
        yield deployment
