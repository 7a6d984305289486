"""Every worker gets its share of each entity and of all shards, and keeps what it has as far as that allows (C90)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("faust")  # the worker's packages are an extra

from faust.assignor.client_assignment import ClientAssignment
from faust.types import TP

from lapse.runtime.kafka.group.spread import spread

Owned = dict[str, set[TP]]


def balanced(members: list[str], entities: dict[str, int], owned: Owned, shared: int = 0) -> Owned:
    """What members own afterwards, where Faust gave everything to the first of them.

    The first `shared` entities have a topic in common.
    """
    topics = {name: {f"{name}.commands", "common" if at < shared else name} for at, name in enumerate(entities)}
    everything = {topic: list(range(count)) for name, count in entities.items() for topic in topics[name]}
    assignments = {
        member: ClientAssignment(
            actives={topic: list(some) if member == members[0] else [] for topic, some in everything.items()},
            standbys={},
        )
        for member in members
    }
    spread(assignments, {member: owned.get(member, set()) for member in members}, topics.values())
    found = {member: assignments[member].active_tps for member in members}
    assert sum(map(len, found.values())) == sum(map(len, everything.values())), "each partition is read by one"
    assert set().union(*found.values()) == {TP(topic, one) for topic, some in everything.items() for one in some}
    for member, tps in found.items():
        for name in entities:
            first, second = ({tp.partition for tp in tps if tp.topic == topic} for topic in topics[name])
            assert first == second, f"{member} reads all topics of a shard"
    return found


def shards(owned: Owned) -> list[int]:
    return sorted(sum(tp.topic.endswith(".commands") for tp in tps) for tps in owned.values())


@pytest.mark.feature("C81")
def test_a_queue_gets_its_new_shards_before_others_over_its_topic_have_theirs() -> None:
    counts = {"common": 2, "enlarged.commands": 2, "other.commands": 1}
    everything = {topic: list(range(count)) for topic, count in counts.items()}
    assignments = {"a": ClientAssignment(actives=everything, standbys={})}
    spread(assignments, {}, [{"common", "enlarged.commands"}, {"common", "other.commands"}])
    assert assignments["a"].actives == {"common": [0, 1], "enlarged.commands": [0, 1], "other.commands": [0]}
    assignments = {"a": ClientAssignment(actives={**everything, "enlarged.commands": [0]}, standbys={})}
    spread(assignments, {}, [{"common", "enlarged.commands"}, {"common", "other.commands"}])
    assert assignments["a"].actives["common"] == [0], "no entity has all of its topics there"


@pytest.mark.feature("C90")
def test_queues_of_one_partition_are_spread_over_all_workers() -> None:
    entities = {f"q{number}": 1 for number in range(10)}
    assert shards(balanced(["a", "b", "c"], entities, {})) == [3, 3, 4]


@pytest.mark.feature("C90")
def test_entities_with_a_topic_in_common_stay_together() -> None:
    found = balanced(["a", "b"], {f"q{number}": 1 for number in range(6)}, {}, shared=3)
    assert shards(found) == [3, 3]
    assert {"q0.commands", "q1.commands", "q2.commands"} in (
        {tp.topic for tp in tps if tp.topic in {"q0.commands", "q1.commands", "q2.commands"}} for tps in found.values()
    )


@pytest.mark.feature("C90")
def test_nothing_moves_without_need() -> None:
    entities = {"orders": 3, "prices": 3, "jobs": 1, "mails": 1}
    first = balanced(["a", "b"], entities, {})
    assert balanced(["a", "b"], entities, first) == first
    assert balanced(["b", "a"], entities, first) == first
    more = balanced(["a", "b"], {**entities, "fresh": 2}, first)
    for member, tps in first.items():
        assert tps <= more[member], "a new entity moves nothing"


@pytest.mark.feature("C90")
def test_a_worker_that_comes_gets_its_share_from_those_that_have_more() -> None:
    entities = {"orders": 3, **{f"q{number}": 1 for number in range(9)}}
    before = balanced(["a", "b"], entities, {})
    after = balanced(["a", "b", "c"], entities, before)
    assert shards(after) == [4, 4, 4]
    for member, tps in before.items():
        assert after[member] < tps


@pytest.mark.feature("C90")
@given(
    st.dictionaries(st.sampled_from([f"e{number}" for number in range(12)]), st.integers(1, 7), min_size=1),
    st.lists(st.sets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=5),
)
def test_shares_are_even_whoever_comes_and_goes(entities: dict[str, int], groups: list[set[str]]) -> None:
    owned: Owned = {}
    for members in groups:
        before, owned = owned, balanced(sorted(members), entities, owned)
        for name, count in entities.items():
            had = [sum(tp.topic == name for tp in tps) for tps in owned.values()]
            assert max(had) - min(had) <= 1, f"{name}: {count} partitions over {len(members)} workers"
        if len(set(entities.values())) == 1 and 1 in entities.values():
            assert max(shards(owned)) - min(shards(owned)) <= 1
        if before.keys() == owned.keys():
            assert before == owned
    assert balanced(sorted(groups[-1]), entities, owned) == owned


@pytest.mark.feature("C81", "C90")
@pytest.mark.parametrize("journal", [2, 1, 0])
def test_topics_of_which_one_is_seen_with_fewer_partitions_are_given_out_as_far_as_all_have_them(journal: int) -> None:
    """As while a queue gets shards, or while a topic of a new one is not seen yet."""
    topics = {"q.commands": [0, 1, 2, 3], "q.journal": list(range(journal))}
    members = {name: ClientAssignment(actives={one: [] for one in topics}, standbys={}) for name in ("a", "b")}
    members["a"] = ClientAssignment(actives=dict(topics), standbys={})
    spread(members, {"a": set(), "b": set()}, [set(topics)])
    for number in range(journal):
        (reader,) = (name for name, one in members.items() if TP("q.journal", number) in one.active_tps)
        assert TP("q.commands", number) in members[reader].active_tps
    given = [tp for one in members.values() for tp in one.active_tps]
    assert len(given) == len(set(given)) == (2 * journal or 4)
