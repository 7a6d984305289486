"""The table of interactions is whole: every two features have a rule, and a test that exists or a reason."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from lapse.config.entity_config import QueueConfig, SowConfig
from lapse.config.root import WorkerConfig
from lapse.config.topic import TopicConfig
from lapse.core.entitlement import QUEUE_RIGHTS, SOW_RIGHTS
from lapse.core.queue.change import ChangeKind
from lapse.core.queue.life.table import Trigger
from lapse.protocol import header
from lapse.protocol.command import DEFINITION_COMMANDS
from support.suite.contract import promises
from support.suite.interaction import DATA, LIFE, exists, page, shown_by, table
from unit.core.queue.switch import SWITCHES

PAGE = Path(__file__).parents[2] / "docs" / "interactions.md"
NUMBER = re.compile(r"\b[LSQDXC]\d+\b")


def test_every_two_features_have_one_row() -> None:
    there = Counter((pair.first, pair.second) for pair in table().pairs)
    assert set(there) == set(table().wanted)
    assert set(there.values()) == {1}


def test_every_row_names_a_test_that_exists() -> None:
    found = table()
    assert [test for test in found.tests.values() if not exists(test)] == []
    assert {pair.test for pair in found.pairs if pair.test} == set(found.tests)


def test_a_rule_without_a_test_of_its_own_is_about_two_features_of_the_core() -> None:
    alone = [pair for pair in table().pairs if pair.test == LIFE]
    assert [pair for pair in alone if not {pair.first, pair.second} <= SWITCHES.keys()] == []
    assert set(SWITCHES) < set(table().features)


def test_a_row_names_a_test_that_shows_what_its_rule_cites() -> None:
    """At least one number of the rule is in the test's `feature` markers."""
    found = table()
    named = [pair for pair in found.pairs if pair.test not in ("", LIFE)]
    wrong = [
        f"{pair.first} and {pair.second}: {pair.test} shows none of {sorted(NUMBER.findall(pair.rule))}"
        for pair in named
        if not shown_by(found.tests[pair.test]) & {*NUMBER.findall(pair.rule)}
    ]
    assert not wrong, "\n".join(wrong)


def test_every_number_is_one_of_the_contract() -> None:
    cited = {number for pair in table().pairs for number in NUMBER.findall(pair.rule)}
    cited |= {number for feature in table().features.values() for number in feature.numbers}
    assert sorted(cited - promises().keys()) == []


def test_every_number_of_the_contract_belongs_to_a_feature() -> None:
    """A decided question (C) may also be cited by a rule only."""
    found = table()
    owned = {number for feature in found.features.values() for number in feature.numbers}
    decided = {number for pair in found.pairs for number in NUMBER.findall(pair.rule) if number.startswith("C")}
    outside = found.outside["numbers"].keys()
    missing = promises().keys() - owned - decided - outside
    assert not missing, f"{DATA.name}: no feature has {sorted(missing)}; a new feature needs a row with every other one"
    assert not owned & outside
    assert not outside - promises().keys()


HEADERS = {
    name
    for name, value in vars(header).items()
    if name.isupper() and isinstance(value, str) and not value.endswith("-")
}
"""The names of headers in the code."""


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("keys", {*QueueConfig.model_fields, *SowConfig.model_fields, *TopicConfig.model_fields}),
        ("deployment", set(WorkerConfig.model_fields)),
        ("headers", HEADERS),
        ("commands", {*QUEUE_RIGHTS, *SOW_RIGHTS, *DEFINITION_COMMANDS, "tick"}),
        ("changes", set(ChangeKind.__members__)),
        ("triggers", set(Trigger.__members__)),
    ],
)
def test_every_key_header_command_change_and_trigger_belongs_to_one_feature(kind: str, there: set[str]) -> None:
    owned = Counter(name for feature in table().features.values() for name in getattr(feature, kind))
    owned.update(table().outside.get(kind, {}).keys())
    missing, unknown = sorted(there - owned.keys()), sorted(owned.keys() - there)
    assert not missing, f"{DATA.name}: no feature has {missing}; a new feature needs a row with every other one"
    assert not unknown
    assert [name for name, count in owned.items() if count > 1] == []


def test_the_page_is_what_the_data_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"print it again: python tests/interactions.py > {PAGE.name}"


def test_what_is_missing_is_noticed() -> None:
    assert not exists("unit/test_interactions.py::test_that_is_not_there")
    assert not exists("unit/no_such_file.py::test_the_page_is_what_the_data_says")
    assert exists("unit/test_interactions.py::test_the_page_is_what_the_data_says")
    assert shown_by("unit/testing/test_admin.py::test_a_rewind_brings_back_nothing_of_a_topic_that_was_taken_away") == {
        *("X8", "Q23", "C62", "C65", "Q22")
    }
