"""`lapse queue create` and its kin: how settings stand on a command line (Q23, X7)."""

import shlex

import click
import pytest

from lapse.cli.define import EXAMPLES, read_settings, unset
from lapse.cli.definition import readable
from lapse.config import Config
from lapse.config.definition import Definition, Kind
from support.suite import command


@pytest.mark.feature("Q23")
@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["lease_period=30s"], {"lease_period": "30s"}),
        (["max_deliveries=5", "standby=true"], {"max_deliveries": 5, "standby": True}),
        (['topics=["a", "b"]', 'dead_letter="x"'], {"topics": ["a", "b"], "dead_letter": "x"}),
        (["retry.delay=10s", "retry.factor=2"], {"retry": {"delay": "10s", "factor": 2}}),
        (['topic_expirations."a.b"=1m'], {"topic_expirations": {"a.b": "1m"}}),
        (["group_by=/customer"], {"group_by": "/customer"}),
        (["barrier=/type = 'EOD'"], {"barrier": "/type = 'EOD'"}),
        (['priority=1\nforward_to = "x"'], {"priority": '1\nforward_to = "x"'}),
    ],
)
def test_settings_are_those_of_the_file_and_quotes_may_be_left_out(given: list[str], read: dict[str, object]) -> None:
    assert read_settings(tuple(given)) == read


@pytest.mark.feature("X7")
@pytest.mark.parametrize("given", ["lease_period", "=1", "a b=1", "#a=1", "[queue.x]\na=1", "a=\udcff"])
def test_what_is_no_setting_is_shown(given: str) -> None:
    with pytest.raises(click.UsageError, match="is no setting: expected KEY=VALUE"):
        read_settings((given,))


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "given", [["lease_period=5s", "lease_period=6s"], ["retry.delay=5s", ' retry."delay" =6s'], ["topics=[]"] * 2]
)
def test_what_is_set_twice_is_refused(given: list[str]) -> None:
    with pytest.raises(click.UsageError, match="is set twice; set it once"):
        read_settings(tuple(given))


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("given", "removed"),
    [
        ("lease_period=5s", "lease_period"),
        ("retry.delay=5s", "retry.delay"),
        ("retry.delay=5s", "retry"),
        ("retry=5s", "retry.delay"),
        ("topic_expirations={}", "topic_expirations"),
    ],
)
def test_what_is_set_and_unset_is_refused(given: str, removed: str) -> None:
    with pytest.raises(click.UsageError, match=f"--unset {removed}: the same command sets it; leave one of them out"):
        unset(read_settings((given,)), removed)


@pytest.mark.feature("Q23")
@pytest.mark.parametrize("removed", [["retry", "retry.factor"], ["retry.factor", "retry"]])
def test_a_table_that_is_unset_is_unset_as_a_whole(removed: list[str]) -> None:
    changed: dict[str, object] = {}
    for key in removed:
        unset(changed, key)
    assert changed == {"retry": None}


@pytest.mark.feature("Q23")
@pytest.mark.parametrize("kind", ["queue", "sow"])
def test_the_settings_that_the_help_shows_are_some_of_this_kind(kind: Kind) -> None:
    for example in EXAMPLES[kind]:
        settings = read_settings(tuple(shlex.split(example)))
        assert Config.model_validate({kind: {"orders": settings}}), example


@pytest.mark.feature("X7")
def test_an_alteration_names_something() -> None:
    done = command.run("queue", "alter", "orders")
    assert done.returncode == 2
    assert "name what changes: KEY=VALUE, or --unset KEY" in done.stderr


@pytest.mark.feature("Q23")
def test_what_is_unset_may_be_in_a_table() -> None:
    changed = read_settings(("retry.delay=5s",))
    for key in ("retry.factor", "lease_period", 'topic_expirations."a.b"'):
        unset(changed, key)
    assert changed == {
        "retry": {"delay": "5s", "factor": None},
        "lease_period": None,
        "topic_expirations": {"a.b": None},
    }
    with pytest.raises(click.UsageError, match="--unset 'a b': no name of a setting"):
        unset(changed, "a b")


@pytest.mark.feature("Q23", "X7")
def test_a_definition_that_cannot_be_read_hides_no_other() -> None:
    good = {name: Definition(name, "queue", 1, "a test", {}).encode() for name in ("a", "c")}
    known, faults = readable({"a": good["a"], "b": b"\xff", "c": good["c"], "d": b"[]"})
    assert [one.name for one in known] == ["a", "c"]
    assert [fault.partition(":")[0] for fault in faults] == ["definition of b", "definition of d"]
