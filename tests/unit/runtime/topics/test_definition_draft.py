"""What somebody asks an entity to be, held against what is defined (Q23, C64, C65)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.config import Config
from lapse.config.decided_entities import DecidedEntities
from lapse.config.definition import Definition, with_only_defined
from lapse.core.error_code import ErrorCode
from lapse.runtime.topics.definition_draft import Draft, Refused, Request, draft, patched
from lapse.runtime.topics.definition_follower import DefinitionFollower
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.unfinished_creations import UnfinishedCreations
from lapse.runtime.topics.wanted import Role, Wanted

NOW_MS = 1_790_000_000_000

THERE = {
    "orders": Definition("orders", "queue", 3, "lapse.toml", {"lease_period": "1m", "retry": {"delay": "10s"}}),
    "prices": Definition("prices", "sow", 1, "alice", {}),
    "broken": Definition("broken", "queue", 1, "a newer lapse", {"shiny": 1}),
}


def ask(name: str, settings: dict[str, Any], **more: Any) -> Draft:
    asked = Request(name, more.pop("kind", "queue"), settings, "bob", more.pop("new", False), **more)
    return draft(asked, THERE, Config(), Path(), NOW_MS)


@pytest.mark.feature("Q23", "C64")
def test_what_is_created_has_version_1_and_who_asked() -> None:
    made = ask("fresh", {"expiration": "1m", "max_deliveries": None}, new=True)
    assert made.after == Definition("fresh", "queue", 1, "bob", {"expiration": "1m"})
    assert made.differs is not None
    assert set(made.config.queue) == {"orders", "fresh"}, "what cannot be understood here concerns nobody else"


@pytest.mark.feature("Q23", "C64")
def test_what_is_created_again_stays_as_it_is() -> None:
    made = ask("orders", {"lease_period": "60s", "retry": {"delay": "10000ms"}}, new=True)
    assert made.differs is None
    assert made.after is THERE["orders"]


@pytest.mark.feature("Q23", "L8")
def test_a_queue_that_is_created_at_run_time_has_the_lifetimes_of_its_topics() -> None:
    config = Config(
        topic={"web": {"expiration": "2d"}, "fax": {"expiration": "1h"}},
        queue={"orders": {"topics": ["web", "fax"]}},
    )
    asked = Request("fresh", "queue", {"topics": ["web", "mail"], "expiration": "enabled"}, "bob", True)
    older = Definition("older", "queue", 1, "alice", {"topics": ["web"], "expiration": "enabled"})
    of_worker = with_only_defined(config, [older], Path())
    assert of_worker.queue["older"].topic_expirations == {}, (
        "what is defined counts, whatever the file of a worker says"
    )
    for one in (config, of_worker):
        made = draft(asked, {"older": older}, one, Path(), NOW_MS).after
        assert made.settings["topic_expirations"] == {"web": "2d"}
    later = config.model_copy(update={"topic": {"web": config.topic["fax"]}})
    assert draft(asked, {"fresh": made}, later, Path(), NOW_MS).differs is None, "what is created again stays as it is"
    own = replace(asked, settings={**asked.settings, "topic_expirations": {"web": "5m"}})
    assert draft(own, {}, config, Path(), NOW_MS).after.settings["topic_expirations"] == {"web": "5m"}


@pytest.mark.feature("Q23", "C64")
def test_a_change_names_what_differs_and_leaves_the_rest() -> None:
    made = ask("orders", {"retry": {"factor": 3}, "lease_period": None, "max_cancels": 2})
    assert made.after.version == 4
    assert made.after.settings == {"retry": {"delay": "10s", "factor": 3}, "max_cancels": 2}
    assert made.differs is not None
    assert set(made.differs.keys) == {"lease_period", "retry", "max_cancels"}
    same = ask("orders", {"lease_period": "60s"}, version=3)
    assert same.differs is None
    assert same.after.version == 3


@pytest.mark.feature("X7", "C64", "C65")
@pytest.mark.parametrize(
    ("name", "settings", "more", "code", "why"),
    [
        ("orders", {}, {"new": True}, ErrorCode.EXISTS, r"other settings \(version 3, by lapse.toml\). Alter it"),
        ("prices", {}, {"new": True}, ErrorCode.EXISTS, "there is a SOW topic prices already"),
        ("order", {}, {}, ErrorCode.UNKNOWN_ENTITY, "no queue order; did you mean 'orders'"),
        ("order", {}, {"kind": "sow"}, ErrorCode.UNKNOWN_ENTITY, "no SOW topic order; defined are: prices"),
        (
            "x",
            {},
            {"kind": "sow"},
            ErrorCode.UNKNOWN_ENTITY,
            "no SOW topic x; defined are: prices. .*`lapse sow create x`",
        ),
        ("prices", {}, {}, ErrorCode.INVALID_ARGUMENT, "prices is a SOW topic, not a queue"),
        ("orders", {}, {"version": 2}, ErrorCode.OUTDATED, "based on version 2, and version 3 is there, by lapse.toml"),
        ("orders", {"lease": "9s"}, {}, ErrorCode.INVALID_ARGUMENT, "orders: lease: unknown key; did you mean"),
        ("orders", {"lease": None}, {}, ErrorCode.INVALID_ARGUMENT, "orders: lease: unknown key; did you mean"),
        (
            "orders",
            {"retry": {"factr": None}},
            {},
            ErrorCode.INVALID_ARGUMENT,
            "orders: retry.factr: unknown key; did you mean 'factor'",
        ),
        ("orders", {"retry": {"delay": None}}, {}, ErrorCode.INVALID_ARGUMENT, "orders: retry.delay: has to be given"),
        (
            "fresh",
            {"lease": None},
            {"new": True},
            ErrorCode.INVALID_ARGUMENT,
            "fresh: lease: unknown key; did you mean",
        ),
        ("orders", {"lease_period": "-1"}, {}, ErrorCode.INVALID_ARGUMENT, "orders: lease_period: "),
        ("orders", {"partitions": 4}, {}, ErrorCode.INVALID_ARGUMENT, "partitions cannot change"),
        ("a b", {}, {"new": True}, ErrorCode.INVALID_ARGUMENT, "queue.a b: 'a b' cannot name an entity"),
        ("fresh", {"group_limit": 2}, {"new": True}, ErrorCode.INVALID_ARGUMENT, "fresh: group_limit: needs group_by"),
        (
            "back",
            {"topics": ["t"], "forward_to": "t"},
            {"new": True},
            ErrorCode.INVALID_ARGUMENT,
            "queue.back.forward_to: a circle",
        ),
        ("fresh", {"on_expire": "nowhere_at_all:rule"}, {"new": True}, ErrorCode.INVALID_ARGUMENT, "nowhere_at_all"),
        *(
            ("fresh", {"topic_pattern": pattern}, {"new": True}, ErrorCode.INVALID_ARGUMENT, f"topic_pattern: .*{why}")
            for pattern, why in (
                ("(" * 500 + ")" * 500, "more than 100 groups"),
                ("a{99999999999999999999}", "no regular expression"),
                ("(?x)a #", "no regular expression"),
            )
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_place(
    name: str, settings: dict[str, Any], more: dict[str, Any], code: ErrorCode, why: str
) -> None:
    with pytest.raises(Refused, match=why) as refused:
        ask(name, settings, **more)
    assert refused.value.refusal.code is code


@pytest.mark.feature("Q16", "Q23")
def test_no_queue_begins_in_the_future() -> None:
    for settings in ({"recovery_point": NOW_MS + 1}, {"recovery_point": "2999-01-01T00:00:00Z"}):
        for name, new in (("fresh", True), ("orders", False)):
            with pytest.raises(Refused, match=f'{name}: recovery_point: .* in the future.* Write "end"') as refused:
                ask(name, settings, new=new)
            assert refused.value.refusal.code == ErrorCode.INVALID_ARGUMENT
    assert ask("fresh", {"recovery_point": NOW_MS}, new=True).is_new
    begun = Definition("late", "queue", 1, "bob", {"recovery_point": NOW_MS + 1})  # as earlier versions allowed
    other = Request("late", "queue", {"lease_period": "5s"}, "bob", new=False)
    assert draft(other, {"late": begun}, Config(), Path(), NOW_MS).is_new, "what stays is not looked at"


@pytest.mark.feature("C66")
def test_a_command_that_is_carried_out_twice_is_known_again() -> None:
    made = ask("orders", {"max_cancels": 2}, command="1")
    again = draft(
        Request("orders", "queue", {"max_cancels": 2}, "bob", False, 3, "1"),
        {"orders": made.after},
        Config(),
        Path(),
        NOW_MS,
    )
    assert (again.after, again.differs, again.is_new) == (made.after, None, True), (
        "although its version is not 3 any more"
    )
    assert not ask("orders", {}, command="1").is_new
    assert Definition.decode("orders", made.after.encode()) == made.after


@pytest.mark.feature("C65")
def test_what_live_messages_forbid_is_asked_for_only_where_it_matters() -> None:
    ask("orders", {"max_cancels": 2}).check_state(lambda _: pytest.fail("nobody had to be asked"))
    made = ask("orders", {"priority": "/p"})
    with pytest.raises(Refused, match="priority cannot change while anything is live: 2 are") as refused:
        made.check_state(lambda _: {"orders": 2})
    assert refused.value.refusal.code is ErrorCode.IN_USE
    made.check_state(lambda _: {})


@pytest.mark.feature("Q23")
def test_settings_are_patched() -> None:
    assert patched({"a": 1, "t": {"x": 1, "y": 2}}, {"a": None, "t": {"x": None, "z": 3}, "n": {"k": None}}) == {
        "t": {"y": 2, "z": 3},
        "n": {},
    }


@pytest.mark.feature("C65")
def test_a_temporary_queue_remembers_the_topics_that_are_created_with_it() -> None:
    lacking = [
        Difference("fresh", "missing", Wanted("fresh", Role.UNDERLYING, "fresh", 1)),
        Difference("lapse.events.fresh", "missing", Wanted("lapse.events.fresh", Role.EVENTS, "fresh", 1)),
        Difference("dlq.fresh", "missing", Wanted("dlq.fresh", Role.DEAD_LETTERS, "fresh", 1)),
        Difference("letters", "missing", Wanted("letters", Role.DEAD_LETTERS, "fresh", 1)),
        Difference("lapse.fresh.commands", "missing", Wanted("lapse.fresh.commands", Role.COMMANDS, "fresh", 1)),
        Difference("there", "has a limit", alter={"max.message.bytes": "1"}),
    ]
    made = ask("fresh", {"auto_delete_on_idle": "5m"}, new=True).with_topics(lacking).after
    all_of_it = ("dlq.fresh", "fresh", "lapse.events.fresh")
    assert made.made == all_of_it
    again = ask("fresh", {"auto_delete_on_idle": "5m"}, new=True).with_topics(lacking[1:], ["fresh", "another's"]).after
    assert again.made == all_of_it, "a first try had created one of them"
    assert Definition.decode("fresh", made.encode()) == made
    changed = Request("fresh", "queue", {"max_cancels": 1}, "bob", new=False)
    later = draft(changed, {"fresh": made}, Config(), Path(), NOW_MS).with_topics(lacking)
    assert later.after.made == all_of_it, "what is created later is not its own"
    assert ask("fresh", {}, new=True).with_topics(lacking).after.made == (), "it is not temporary"


@pytest.mark.feature("C65")
def test_what_a_temporary_queue_takes_along_nobody_else_reads() -> None:
    made = ask("reply", {"auto_delete_on_idle": "5m", "topics": ["own", "read"]}, new=True).after
    temporary = replace(made, made=("own", "read"))
    reader = Definition("reader", "queue", 1, "bob", {"topic_pattern": "re.d", "default_publish_target": "read"})
    follower = DefinitionFollower(
        SimpleNamespace(services=SimpleNamespace(topics=None)),
        Config(),
        DecidedEntities(Config(), {}, (), Path()),
        {},
    )
    follower._found = {"reply": temporary.encode(), "reader": reader.encode(), "broken": b"{"}
    assert follower.topics_deleted_along(["reply"]) == ["own"]
    assert follower.topics_deleted_along(["reader"]) == []
    follower._found["second"] = replace(temporary, name="second").encode()
    assert follower.topics_deleted_along(["reply"]) == [], "the second one reads them"
    assert follower.topics_deleted_along(["reply", "second"]) == ["own"], "they end together"
    del follower._found["second"]
    del follower._found["reader"]
    assert follower.topics_deleted_along(["reply"]) == ["own", "read"]
    made = ("dlq.reply", "lapse.events.reply", "own")
    follower._found["reply"] = replace(temporary, made=made).encode()
    assert follower.topics_deleted_along(["reply"]) == [*made]
    elsewhere = replace(temporary, made=made, settings={**temporary.settings, "dead_letter": "letters"})
    follower._found["reply"] = elsewhere.encode()
    assert follower.topics_deleted_along(["reply"]) == ["dlq.reply", "own"], (
        "the letters stay, and the events with them"
    )
    follower._found["reply"] = replace(temporary, made=made).encode()
    follower._found["other"] = Definition("other", "queue", 1, "bob", {"dead_letter": "dlq.reply"}).encode()
    assert follower.topics_deleted_along(["reply"]) == ["lapse.events.reply", "own"], (
        "another queue writes its letters there"
    )
    follower._found["reply"] = replace(temporary, made=("own", "read")).encode()
    follower._found["other"] = Definition("other", "queue", 1, "bob", {"forward_to": "own"}).encode()
    assert follower.topics_deleted_along(["reply"]) == ["read"], "another queue forwards to it"
    strange = {"topics": ["own"], "on_expire": "nowhere_to_be_found:rule"}
    follower._found["other"] = Definition("other", "queue", 1, "bob", strange).encode()
    assert follower.topics_deleted_along(["reply"]) == ["read"], "it is served by another worker, which has the rule"
    lasting = replace(temporary, settings={"topics": ["own", "read"]})
    follower._found["reply"] = lasting.encode()
    assert follower.topics_deleted_along(["reply"]) == [], "it is not temporary any more"


@pytest.mark.feature("C65")
def test_what_is_being_created_is_remembered_until_it_is_done_also_over_a_rebalance() -> None:
    """The group may be balanced anew in the middle of a command, which is then tried again."""
    creations = UnfinishedCreations({}, "definitions")
    asyncio.run(creations.note(["fresh"]))
    creations.forget()
    assert creations.topics == {"fresh"}
    creations.end()
    assert creations.topics == set()


@pytest.mark.feature("Q23", "X7")
def test_what_cannot_be_read_is_not_changed_but_created_anew_above_its_versions() -> None:
    """A version that workers have had already would not be taken up."""
    spoiled = {"gone": "definition of gone: no JSON"}
    asked = Request("gone", "queue", {"lease_period": "9s"}, "bob", new=False)
    with pytest.raises(Refused, match="definition of gone: no JSON. So nothing can be changed in it") as refused:
        draft(asked, THERE, Config(), Path(), NOW_MS, unreadable=spoiled)
    assert refused.value.refusal.code is not ErrorCode.UNKNOWN_ENTITY
    made = draft(replace(asked, new=True), THERE, Config(), Path(), NOW_MS, unreadable=spoiled, versions={"gone": 7})
    assert made.after.version == 8
    assert made.differs is not None
