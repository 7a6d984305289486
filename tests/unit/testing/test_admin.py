"""Entities that programs create, change and delete in `lapse.testing`: by the rules of the workers (X8, Q23)."""

from __future__ import annotations

import asyncio

import pytest

from lapse.core.error_code import ErrorCode
from lapse.protocol import topic
from lapse.testing import Lapse
from lapse_client import Admin, CommandFailed, aio

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
        lapse.clock.advance(10)
        assert admin.create_queue("orders").version == 1

    async def main() -> int:
        async with aio.Admin() as admin:
            await admin.create_sow_topic("prices", expiration="1s")
            return (await admin.alter_sow_topic("prices", expiration=None)).version

    assert asyncio.run(main()) == 2


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
