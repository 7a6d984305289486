"""Counts are written with their nouns, as people write them."""

import pytest

from lapse_client.reading.count_text import count_text


@pytest.mark.parametrize(("count", "text"), [(0, "0 letters"), (1, "1 letter"), (2000, "2,000 letters")])
def test_a_count_has_its_noun_in_singular_or_plural(count: int, text: str) -> None:
    assert count_text(count, "letter") == text
