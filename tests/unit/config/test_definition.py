"""Definitions of entities: how they are written, what differs between two, and what state forbids (Q23, C64, C65)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.config import load
from lapse.config.decided_entities import decide
from lapse.config.definition import Definition, DefinitionChange, find_change, in_file, with_entities, with_only_defined
from lapse.runtime.topics.definitions_reader import note

HERE = Path()


def queue(version: int = 1, **settings: Any) -> Definition:
    return Definition("orders", "queue", version, "lapse.toml", settings)


def between(before: dict[str, Any], after: dict[str, Any]) -> DefinitionChange | None:
    return find_change(queue(**before), queue(2, **after), HERE)


@pytest.mark.feature("C64")
def test_a_definition_is_read_as_it_was_written() -> None:
    one = queue(3, lease_period="30s", topic_expirations={"a": "1m"}, topics=["a"])
    assert Definition.decode("orders", one.encode()) == one
    assert one.encode() == replace(one, settings=dict(reversed(one.settings.items()))).encode()


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "no JSON"),
        (b"[]", "kind is missing"),
        (b'{"kind": "queue", "version": "1", "origin": "", "settings": {}}', "version is missing, or is no int"),
        (b'{"kind": "topic", "version": 1, "origin": "", "settings": {}}', 'kind has to be "queue" or "sow"'),
        (b'{"kind": "sow", "version": 0, "origin": "", "settings": {}}', "version 1 or more"),
        (b'{"kind": "sow", "version": 1, "origin": "", "settings": {}, "made": 5}', "made is no list"),
        (b'{"kind": "sow", "version": 1, "origin": "", "settings": {}, "made": [null]}', "made is no list"),
        (b'{"kind": "sow", "version": 1, "origin": "", "settings": {}, "command": []}', "command is no text"),
    ],
)
def test_what_is_no_definition_is_named(value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"definition of orders: .*{why}"):
        Definition.decode("orders", value)


@pytest.mark.feature("C64")
def test_spelling_is_no_difference() -> None:
    assert between({"lease_period": "60s"}, {"lease_period": "1m"}) is None
    assert between({}, {"semantics": "at-least-once", "max_deliveries": 0}) is None
    found = between({"max_cancels": 1}, {"lease_period": "1m"})
    assert found is not None
    assert set(found.keys) == {"lease_period", "max_cancels"}
    assert found.refusal({"": 1_000}) == ""
    assert found.at_run_time


@pytest.mark.feature("C65")
@pytest.mark.parametrize(
    "after",
    [
        {"semantics": "at-most-once"},
        {"ordering": "total"},
        {"priority": "/p"},
        {"group_by": "/g"},
        {"ordering": "total", "barrier": "/b"},
        {"topics": ["b"], "group_by": "/g"},
        {"topic_pattern": "[ab]", "priority": "/p"},
    ],
)
def test_what_live_messages_forbid(after: dict[str, Any]) -> None:
    found = between({"topics": ["a", "b"]}, {"topics": ["a", "b"], **after})
    assert found is not None
    assert "cannot change while anything is live: 2 are. Let them be settled" in found.refusal({"a": 1, "b": 1})
    assert "no worker says whether something is. Start the workers" in found.refusal(None)
    assert found.refusal({}) == ""


@pytest.mark.feature("C65")
@pytest.mark.parametrize(
    ("after", "barring"),
    [
        ({"topics": ["b"]}, ["a"]),
        ({"topics": ["b", "c"]}, ["a"]),
        ({"topics": ["c"]}, ["a", "b"]),
        ({"topics": ["a"], "topic_pattern": "x.*"}, ["b"]),
        ({"topics": ["a", "b"], "topic_pattern": "x.*"}, []),
        ({"topics": ["a"], "topic_pattern": "x*"}, ["b"]),
    ],
)
def test_live_messages_keep_their_topic_and_no_other(after: dict[str, Any], barring: list[str]) -> None:
    found = between({"topics": ["a", "b"]}, {"max_cancels": 1, **after})
    assert found is not None
    why = "cannot change while anything of a topic that is taken away is live: 3 are. Let them be settled"
    assert [topic for topic in ("a", "b") if why in found.refusal({topic: 3})] == barring
    assert bool(found.refusal({"": 1})) is bool(found.keys_that_need_empty), "of an unknown topic"


@pytest.mark.feature("C65")
def test_a_topic_more_takes_none_away() -> None:
    found = between({"topics": ["a"]}, {"topics": ["a", "b"]})
    assert found is not None
    assert found.refusal({"a": 5}) == ""
    assert found.at_run_time


@pytest.mark.feature("C65")
def test_what_never_changes() -> None:
    found = between({}, {"partitions": 2})
    assert found is not None
    assert "partitions cannot change" in found.refusal({})
    assert f"`lapse queue partitions {found.after.name}` gives it more" in found.refusal({}), "the way that is open"
    other = find_change(queue(), Definition("orders", "sow", 2, "", {}), HERE)
    assert other is not None
    assert "orders is a queue; delete it first" in other.refusal({})


@pytest.mark.feature("Q23", "X7")
def test_the_topic_decides_and_what_cannot_be_understood_concerns_its_own_entity(tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text('[queue.orders]\nlease_period = "1m"\n[queue.new]\n[sow.same]\n')
    found = {
        "orders": queue(4, lease_period="2m").encode(),
        "same": in_file(file)["same"].encode(),
        "elsewhere": queue().encode(),
        "later": queue(shiny=1).encode(),
        "rule": queue(on_expire="nowhere_to_be_found:rule").encode(),
        "broken": b"{",
    }
    decided = decide(file, load(file), found)
    assert decided.config.queue["orders"].lease_period == 120_000
    assert {*decided.config.queue, *decided.config.sow} == {"orders", "elsewhere", "same"}
    warned = "\n".join(decided.warnings)
    assert len(decided.warnings) == 5
    assert "says otherwise of orders (lease_period): version 4 of its definition counts" in warned
    assert "definition of later: shiny: unknown key; known here: " in warned
    assert "later is not served here" in warned
    assert "broken is not served here" in warned
    assert "rule is not served here" in warned
    assert "new is in lapse.toml, and not defined" in warned


@pytest.mark.feature("Q23", "X7")
def test_hundreds_of_entities_that_are_not_defined_or_differ_are_one_warning_each(tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text("".join(f"[queue.new-{n}]\n[queue.old-{n}]\n" for n in range(300)))
    decided = decide(file, load(file), {f"old-{n}": queue(lease_period="2m").encode() for n in range(300)})
    differing, undefined = decided.warnings
    assert "300 entities of lapse.toml are not defined" in undefined
    assert "`lapse apply`" in undefined
    assert "new-0, new-1, new-2, new-3, new-4 and 295 more" in undefined
    assert "says otherwise of 300 entities" in differing
    assert "old-0 (lease_period), " in differing
    assert decided.undefined == tuple(f"new-{n}" for n in range(300))
    assert [*decided.differing.items()] == [(f"old-{n}", ("lease_period",)) for n in range(300)]


@pytest.mark.feature("Q23", "X7")
def test_a_definition_that_an_older_version_allowed_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text("[queue.orders]\n")
    found = {
        "orders": queue().encode(),
        "__inner": queue(topics=["orders"]).encode(),
        "commits": queue(topics=["__consumer_offsets"]).encode(),
        "offsets": Definition("offsets", "sow", 1, "", {"key": "/k", "topic": "__consumer_offsets"}).encode(),
        "onward": queue(forward_to="__transaction_state").encode(),
    }
    decided = decide(file, load(file), found)
    assert {*decided.config.queue, *decided.config.sow} == {*decided.definitions} == {"orders"}
    assert len(decided.warnings) == 4
    assert "definition of __inner: '__inner' cannot name an entity" in decided.warnings[0]
    assert "commits is not served here" in decided.warnings[1]
    whole = with_only_defined(load(file), [Definition.decode(*one) for one in found.items()], tmp_path)
    assert [*whole.queue, *whole.sow] == ["orders"], "another one can be created beside them"


@pytest.mark.feature("Q23", "X7", "C52")
def test_of_definitions_that_do_not_fit_together_the_later_ones_are_left_out(tmp_path: Path) -> None:
    """Two programs may have written them at the same moment. No worker could start, and nothing could be changed."""
    file = tmp_path / "lapse.toml"
    file.write_text("[queue.a]\n")
    defined: dict[str, bytes] = {}
    for name, settings in (("b", {}), ("x", {}), ("a", {"forward_to": "b"}), ("y", {}), ("b", {"forward_to": "a"})):
        note(defined, name.encode(), queue(**settings).encode())
    decided = decide(file, load(file), defined)
    assert {*decided.config.queue} == {*decided.definitions} == {"a", "x", "y"}
    warned = next(one for one in decided.warnings if one.startswith("definition of b: "))
    assert "do not fit together: queue.a.forward_to: a circle: a → b → a" in warned
    assert "b is not served here" in warned
    whole = with_only_defined(load(file), [Definition.decode(*one) for one in defined.items()], tmp_path)
    assert {*whole.queue} == {"a", "x", "y"}, "another one can be created beside them"


@pytest.mark.feature("C90", "Q23")
def test_of_many_that_come_together_only_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text("[queue.first]\n")
    config = load(file)
    second, third, strange, there, back = (
        replace(queue(**settings), name=name)
        for name, settings in (
            ("second", {}),
            ("third", {}),
            ("strange", {"shiny": 1}),
            ("there", {"forward_to": "back"}),
            ("back", {"forward_to": "there"}),
        )
    )
    whole, understood, faults = with_entities(config, [second, strange, third], tmp_path)
    assert set(whole.queue) == {"first", *understood} == {"first", "second", "third"}
    assert "shiny: unknown key" in faults["strange"]
    whole, understood, faults = with_entities(config, [second, there, back, third], tmp_path)
    assert set(whole.queue) == {"first", *understood} == {"first", "second", "there", "third"}
    assert "a circle" in faults["back"]
