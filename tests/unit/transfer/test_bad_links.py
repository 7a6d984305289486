"""Mistakes in the files of `lapse transfer` and `lapse replicate` are reported with file, line and key (X7)."""

import re

import pytest
from pydantic import BaseModel

from lapse.replication import link as replication
from lapse.transfer import link as transfer
from unit.transfer.bad_links import CASES, Case

pytestmark = pytest.mark.feature("X7", "Q17", "S10")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mistake_is_reported_with_its_place_in_words_of_the_file(case: Case) -> None:
    assert case.message
    place = rf"{re.escape(case.name)}(:\d+)?: [a-z_.0]+: "
    assert re.match(place if "missing" in case.text else place.replace("?", ""), case.message), case.message
    assert not re.search(r"Input|Extra|instance|String|Config", case.message), "words of Python's"


@pytest.mark.parametrize(("name", "model"), [("transfer.toml", transfer.Link), ("replicate.toml", replication.Link)])
def test_every_key_has_a_refusal(name: str, model: type[BaseModel]) -> None:
    keys = {field.alias or key for key, field in model.model_fields.items()}
    tried = {re.split(r"[ .:]+", one.message.partition(": ")[2])[0] for one in CASES if one.name == name}
    assert keys - tried == set()


def test_a_password_is_not_shown() -> None:
    (case,) = [one for one in CASES if "password" in one.text]
    assert "5" not in case.message.removeprefix("transfer.toml:5: ").removeprefix("transfer.toml:3: ")
