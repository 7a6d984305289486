"""The names of topics."""

import pytest

from lapse.protocol import topic


@pytest.mark.feature("D1", "D4", "S8")
def test_an_entitys_topics_have_their_names():
    assert topic.commands("q") == "lapse.q.commands"
    assert topic.deliveries("q") == "lapse.q.deliveries"
    assert topic.events("q") == "lapse.events.q"
    assert topic.sow("q") == "lapse.sow.q"
    assert topic.dead_letters("q") == "dlq.q"
    assert topic.changelog("app", "q") == "app-q-changelog"


@pytest.mark.parametrize("name", ["q", "A.b-c_1", "_x", "0", "a" * 200])
def test_a_name_is_short_and_a_topics(name):
    assert topic.NAME.match(name)
    assert len(topic.changelog("a", name)) <= 249


@pytest.mark.parametrize("name", ["", ".", "..", "-q", "a b", "a/b", "ä", "a" * 201, "q\n"])
def test_other_names_are_refused(name):
    assert not topic.NAME.match(name)


@pytest.mark.feature("X4")
def test_the_topics_of_a_users_deliveries_are_no_other_entitys():
    other = topic.entity_topics("app", "q.deliveries")
    assert topic.private_deliveries("q", [*other, topic.deliveries("q", "ann")]) == ["lapse.q.deliveries.ann"]


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("lapse.q.commands", True),
        ("lapse.q.deliveries.alice", True),
        ("lapse.events.gone", True),
        ("lapse.redriven", True),
        ("lapse-q-changelog", True),
        ("shop-a-b-changelog", True),
        ("other-q-changelog", False),
        ("lapse-page-changelog", False),
        ("-changelog", False),
        ("q", False),
        ("dlq.q", False),
        ("__consumer_offsets", False),
    ],
)
def test_a_topic_that_only_lapse_writes_is_known(name, own):
    existing = {"lapse.q.commands", "lapse.a-b.commands", "lapse.definitions.shop", "q", "lapse-page-changelog"}
    assert topic.is_own(name, existing) is own
