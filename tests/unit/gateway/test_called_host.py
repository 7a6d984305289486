"""By which names a gateway without users may be called."""

import pytest

from lapse_gateway import called_host
from lapse_gateway.fault import Fault

pytestmark = pytest.mark.feature("X4")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "localhost",
        "LocalHost:8080",
        "console.localhost:8080",
        "127.0.0.1:8080",
        "127.1.2.3",
        "[::1]:8080",
        "Lapse.Example.com",
    ],
)
def test_names_of_this_machine_and_those_that_are_stated_are_answered(header: str | None) -> None:
    called_host.check(header, {"lapse.example.com"})


@pytest.mark.parametrize(
    "header",
    [
        "elsewhere.example",
        "elsewhere.example:8080",
        "localhost.elsewhere.example",
        "127.0.0.1.elsewhere.example",
        "notlocalhost",
        "0.0.0.0:8080",
        "10.0.0.1",
        "[::1",
        "[]",
        "elsewhere.example#localhost",
    ],
)
def test_any_other_name_is_refused_and_the_way_is_named(header: str) -> None:
    with pytest.raises(Fault, match="--allow-host") as refused:
        called_host.check(header, frozenset())
    assert (refused.value.code, refused.value.status) == ("other_host", 421)
    called_host.check(header, None)
