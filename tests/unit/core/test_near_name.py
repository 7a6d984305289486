"""A name is suggested only where it is near."""

import pytest

from lapse.core.near_name import did_you_mean, nearest
from lapse_client.error import UnknownEntity

pytestmark = pytest.mark.feature("X7")


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("ordres", ["orders", "jobs"], "orders"),
        ("dlq.ordres", ["dlq.jobs", "dlq.orders"], "dlq.orders"),
        ("dlq.nope", ["dlq.once", "dlq.open-orders"], None),
        ("shop.eu.a", ["shop.eu.b"], None),
        ("orders", ["orders.eu"], "orders.eu"),
        ("orders.eu", ["orders.us.eu", "order.eu"], "order.eu"),
        ("", ["orders"], None),
    ],
)
def test_a_beginning_that_names_share_makes_them_no_nearer(name: str, known: list[str], near: str | None) -> None:
    assert nearest(name, known) == near
    assert did_you_mean(name, known) == ("" if near is None else f" (did you mean {near!r}?)")


def test_an_unknown_name_of_letters_is_not_taken_for_the_letters_of_another_queue() -> None:
    error = UnknownEntity("dead-letter topic", "dlq.nope", ["dlq.once"])
    assert "did you mean" not in str(error)
    assert "there is: dlq.once. " in str(error)
    assert "did you mean 'dlq.once'? " in str(UnknownEntity("dead-letter topic", "dlq.onse", ["dlq.once"]))
