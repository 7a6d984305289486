"""Entities that programs create, change and delete in `lapse.testing`: by the rules of the workers (X8, Q23)."""

from __future__ import annotations

import asyncio

import pytest

from lapse.core.error_code import ErrorCode
from lapse.protocol import topic
from lapse.testing import Lapse
from lapse_client import Admin, CommandFailed, LapseError, UnknownEntity, aio

pytestmark = pytest.mark.feature("X8", "Q23")


@pytest.mark.feature("C64", "C65", "C66")
def test_what_is_changed_counts_at_once_and_keeps_leases_and_what_cannot_change_is_refused(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="10s")
    with lapse.admin() as admin, lapse.publisher() as publisher, lapse.subscriber("orders", 2) as subscriber:
        publisher.publish("orders", b"1")
        held = subscriber.receive(1)
        assert held is not None
        assert admin.alter_queue("orders", lease_period="10000ms").changed is False, "it was so already"
        changed = admin.alter_queue("orders", version=1, lease_period="60s", max_deliveries=1)
        assert (changed.version, changed.changed, changed.shards, changed.late) == (2, True, 1, ())
        publisher.publish("orders", b"2")
        assert subscriber.receive(1) is not None
        lapse.clock.advance(11)
        assert [one.value for one in lapse.dead_letters("orders")] == [b"1"], "the first lease was of ten seconds"
        for code, settings in (
            (ErrorCode.OUTDATED, {"version": 1, "max_deliveries": 4}),
            (ErrorCode.INVALID_ARGUMENT, {"lease": "1s"}),
            (ErrorCode.INVALID_ARGUMENT, {"partitions": 3}),
            (ErrorCode.IN_USE, {"group_by": "/customer"}),
            (ErrorCode.FORBIDDEN, {"on_expire": "os:system"}),
        ):
            with pytest.raises(CommandFailed) as refused:
                admin.alter_queue("orders", **settings)
            assert refused.value.code == code, refused.value
        with pytest.raises(CommandFailed, match="there is no queue other"):
            admin.alter_queue("other", lease_period="1s")
        lapse.crash()
        assert subscriber.receive(1) is None
        lapse.clock.advance(50)
        assert [one.value for one in lapse.dead_letters("orders")] == [b"1", b"2"]
        assert admin.alter_queue("orders", group_by="/customer").version == 3, "nothing is live any more"
        subscriber.close()
        admin.delete_queue("orders")
        assert admin.create_queue("orders").version == 4, "behind the removal, as with workers"

    async def main() -> int:
        async with aio.Admin() as admin:
            await admin.create_sow_topic("prices", expiration="1s")
            return (await admin.alter_sow_topic("prices", expiration=None)).version

    assert asyncio.run(main()) == 2


@pytest.mark.feature("C65", "L5")
def test_a_topic_goes_once_it_has_nothing_live_whatever_the_others_have_and_comes_back(lapse: Lapse) -> None:
    """The messages of both stand in turn, so the shard keeps them side by side."""
    lapse.queue("both", topics=["a", "b"])
    with lapse.admin() as admin, lapse.publisher() as publisher, lapse.queue_client("both") as queue:

        def is_refused(live: int, *topics: str) -> bool:
            with pytest.raises(CommandFailed, match=f"of a topic that is taken away is live: {live} are") as refused:
                admin.alter_queue("both", topics=[*topics])
            return refused.value.code == ErrorCode.IN_USE

        for number in range(6):
            publisher.publish("ab"[number % 2], str(number).encode())
            lapse.settle()
        publisher.publish("a", b"later", enqueue_at_ms=lapse.clock.now_ms + 60_000)
        lapse.settle()
        with lapse.subscriber("both", 2) as holder:
            assert [one.value for _ in "ab" if (one := holder.receive(1)) is not None] == [b"0", b"1"]
            assert is_refused(4, "b"), "leased, available and scheduled ones count"
            assert is_refused(3, "a", "c")
        queue.acknowledge([one.bookmark for one in queue.peek() if one.bookmark.startswith("a:")])
        assert is_refused(1, "b"), "the scheduled one"
        queue.cancel([one.bookmark for one in queue.peek(state="scheduled")])
        assert admin.alter_queue("both", topics=["b"]).version == 2
        publisher.publish("a", b"unread")
        lapse.crash()
        lapse.clock.advance(1)
        with lapse.subscriber("both", 9) as subscriber:
            found = [subscriber.receive(1) for _ in range(4)]
            assert [one and one.value for one in found] == [b"1", b"3", b"5", None]
            assert admin.alter_queue("both", topics=["b", "a"]).version == 3
            assert (came := subscriber.receive(1)) is not None
            assert came.value == b"unread", "it is read on from where it was"


@pytest.mark.feature("C62", "C65", "Q22")
def test_a_rewind_brings_back_nothing_of_a_topic_that_was_taken_away(lapse: Lapse) -> None:
    lapse.queue("both", topics=["a", "b"])
    with lapse.admin() as admin, lapse.publisher() as publisher, lapse.queue_client("both") as queue:
        for topic_of_it in ("a", "b"):
            publisher.publish(topic_of_it, topic_of_it.encode())
        lapse.settle()
        queue.acknowledge(["a:0:0", "b:0:0"])
        admin.alter_queue("both", topics=["b"])
        with pytest.raises(CommandFailed, match="a:0:0 is of none of the queue's partitions"):
            queue.rewind("a:0:0")
        assert queue.rewind("beginning")["rewound"] == 1
        assert [one.bookmark for one in queue.peek()] == ["b:0:0~1"]
        admin.alter_queue("both", topics=["a", "b"])
        assert queue.rewind("beginning")["rewound"] == 1, "the other one is live"
        assert sorted(one.bookmark for one in queue.peek()) == ["a:0:0~1", "b:0:0~1"]


@pytest.mark.slow
@pytest.mark.feature("Q18", "C39", "C65")
def test_a_temporary_sow_topic_goes_with_the_topic_that_was_made_for_it(lapse: Lapse) -> None:
    with Admin() as admin, lapse.publisher() as publisher:
        admin.create_sow_topic("basket", topic="updates", auto_delete_on_idle="5m")
        publisher.publish("updates", b"{}", key="a")
        with lapse.sow_client("basket") as client, client.sow_and_subscribe():
            lapse.clock.advance(3_600)
            assert topic.commands("basket") in lapse.connection.partitions()
        lapse.clock.advance(299)
        assert topic.commands("basket") in lapse.connection.partitions()
        lapse.clock.advance(10)
        left = lapse.connection.partitions().keys()
    assert not left & {*topic.entity_topics("lapse", "basket"), "updates"}


@pytest.mark.feature("C52", "X7")
@pytest.mark.parametrize("kind", ["queue", "sow"])
def test_what_is_defined_and_not_served_is_deleted_by_the_command_that_is_named(lapse: Lapse, kind: str) -> None:
    definitions = topic.definitions("lapse")
    lapse.topic(definitions)
    producer = lapse.connection.producer()
    for name, value in (("fresh", b"{}"), ("gone", b"{}"), ("gone", None)):
        producer.produce(definitions, value, name.encode())
    producer.flush()
    with lapse.admin() as admin:
        delete, command = {
            "queue": (admin.delete_queue, "lapse queue delete fresh --force"),
            "sow": (admin.delete_sow_topic, "lapse sow delete-topic fresh --force"),
        }[kind]
        with pytest.raises(LapseError, match=f"fresh is defined, and cannot be served, .* `{command}`"):
            delete("fresh", force=True)
        with pytest.raises(UnknownEntity):
            delete("gone", force=True)


@pytest.mark.feature("C64", "C13")
@pytest.mark.parametrize("settings", [{}, {"auto_delete_on_idle": "5m"}], ids=["lasting", "temporary"])
def test_what_names_a_deleted_queue_fits_its_namesake_no_more_than_with_workers(
    lapse: Lapse, settings: dict[str, str]
) -> None:
    versions: list[int] = []
    tokens: list[bytes] = []
    with lapse.admin() as admin, lapse.publisher() as publisher:
        for _ in range(2):
            versions.append(admin.create_queue("orders", **settings).version)
            with lapse.subscriber("orders") as subscriber:
                publisher.forget_topics()
                publisher.publish("orders", b"1")
                tokens += [delivery.token for delivery in subscriber.messages(5)]
            if len(versions) == 1:
                versions.append(admin.alter_queue("orders", lease_period="5s").version)
                admin.delete_queue("orders", force=True)
        with pytest.raises(CommandFailed, match="the change is based on version 2") as refused:
            admin.alter_queue("orders", version=2, lease_period="6s")
    assert refused.value.code == ErrorCode.OUTDATED
    assert versions[:2] == [1, 2]
    assert versions[2] > 2
    old, new = (int(token.partition(b"@")[2]) for token in tokens)
    assert old < new
