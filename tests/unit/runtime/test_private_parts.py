"""What lapse overrides or calls of aiokafka's and Faust's private parts is as it was when it was read.

Both are pinned exactly. A new version of either fails here first, part by part: read what changed, see that
`lapse.runtime` still does the right thing with it, and write the new fingerprint.

python tests/unit/runtime/test_private_parts.py      prints the fingerprints of what is installed
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_PUBLIC = {"_replace", "_exit"}
"""Public names of Python that begin with an underscore."""

_PUBLIC_MODULES = {
    "aiokafka",
    "aiokafka.abc",
    "aiokafka.admin",
    "aiokafka.admin.config_resource",
    "aiokafka.errors",
    "aiokafka.partitioner",
    "aiokafka.structs",
    "faust",
    "faust.stores.base",
    "faust.types",
}

ROOT = Path(__file__).parents[3]
PINNED = {"aiokafka": "0.14.0", "faust-streaming": "0.15.3", "mode-streaming": "0.7.1"}

PARTS = {
    # part, or a whole module: (fingerprint, where it is used)
    "aiokafka.consumer.fetcher:PartitionRecords": ("44398686f013", "kafka/fetched.py, FetchedRecords"),
    "aiokafka.consumer.fetcher:FetchResult": ("63573b686fb4", "kafka/fetched.py, FetchedPartition"),
    "aiokafka.consumer.fetcher:Fetcher.fetched_records": ("c9d369de9e88", "kafka/fetcher.py, SwiftFetcher"),
    "aiokafka.consumer.fetcher:Fetcher._get_actions_per_node": ("d1ddaa3c0e03", "kafka/fetcher.py, SwiftFetcher"),
    "aiokafka.consumer.fetcher:Fetcher._proc_fetch_request": ("074d9f91c524", "kafka/fetcher.py, SwiftFetcher"),
    "aiokafka.consumer.fetcher:Fetcher._fetch_requests_routine": ("6c610471e286", "kafka/fetcher.py, SwiftFetcher"),
    "aiokafka.protocol.fetch:FetchRequest": ("162ea893b5e5", "kafka/fetch_session.py"),
    "aiokafka.conn:AIOKafkaConnection._handle_frame": ("2403469bc806", "kafka/fetch_session.py; kafka/connection.py"),
    "aiokafka.conn:AIOKafkaConnection": ("ae1bd83c963c", "kafka/connection.py, SwiftConnection"),
    "aiokafka.protocol.produce:ProduceRequest_v3": ("c476a5f48b73", "kafka/connection.py, produced"),
    "aiokafka.cluster:ClusterMetadata.update_metadata": (
        "c41379321f01",
        "kafka/fetcher.py, SwiftFetcher; kafka/metadata.py, know",
    ),
    "aiokafka.producer.sender:Sender._send_produce_req": ("f565254ecb38", "kafka/swift_sender.py, SwiftSender"),
    "aiokafka.producer.sender:Sender._sender_routine": ("44546675befb", "kafka/swift_sender.py, SwiftSender"),
    "aiokafka.producer.message_accumulator:MessageAccumulator": (
        "705a6cdd6d08",
        "kafka/producer.py, BatchProducer.give_up",
    ),
    "aiokafka.producer.message_accumulator:MessageBatch.failure": (
        "f578d10f7af8",
        "kafka/producer.py, BatchProducer.give_up",
    ),
    "aiokafka.consumer.consumer:AIOKafkaConsumer.__init__": ("cc0488fba0cc", "kafka/metadata.py, client_of"),
    "faust.app.base:App._new_transport": ("2beb690a9fb2", "kafka/transport.py, install"),
    "aiokafka.client:AIOKafkaClient._metadata_update": ("b0fbd354d3af", "kafka/metadata.py, _update_in_parts"),
    "aiokafka.client:AIOKafkaClient._md_synchronizer": ("7f81293ee3c2", "kafka/metadata.py, know"),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._create_worker_consumer": (
        "5fd89148e582",
        "kafka/consumer_thread.py, ConsumerThread",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._commit": (
        "f4f95a22defe",
        "kafka/consumer_thread.py, ConsumerThread",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.getmany": (
        "6d95f339e9fc",
        "kafka/consumer_thread.py, ConsumerThread",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._fetch_records": (
        "17bb4a98ab83",
        "kafka/consumer_thread.py, ConsumerThread",
    ),
    "aiokafka.consumer.fetcher:Fetcher._create_fetch_waiter": ("797a9db9feff", "kafka/fetcher.py, SwiftFetcher"),
    "faust.transport.consumer:Consumer._drain_messages": ("30fba6e560f1", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer._wait_next_records": ("1f67795402ab", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer._get_active_partitions": ("dd5477b15d7d", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer._new_offset": ("041e8dc30f2e", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer.perform_seek": ("8c88bc25f247", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer._commit_offsets": ("8cfc0efcc68d", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer.force_commit": ("c78fef197a17", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer.verify_all_partitions_active": (
        "ca7f0a5275a8",
        "kafka/transport.py, BatchConsumer",
    ),
    "faust.transport.conductor:Conductor.on_partitions_assigned": (
        "dc87478a4ce1",
        "kafka/transport.py, QuietConductor",
    ),
    "faust.transport.conductor:Conductor._update_callback_map": ("1592da93d82e", "kafka/transport.py, QuietConductor"),
    "faust.transport.conductor:Conductor._update_indices": ("9704afff9cfc", "kafka/agent.py"),
    "faust.tables.manager:TableManager.on_start": ("00230eed64fa", "kafka/table.py, SelfRestoredTables"),
    "faust.tables.manager:TableManager.on_rebalance": ("ca7681cc4ddc", "kafka/table.py, SelfRestoredTables"),
    "faust.tables.manager:TableManager._update_channels": ("8f6ab69b65ed", "kafka/table.py, SelfRestoredTables"),
    "faust.tables.base:Collection.on_start": ("101fae85c8e6", "kafka/table.py, SelfRestoredTable"),
    "faust.topics:Topic._clone_args": ("8e52bf966b2b", "kafka/agent.py"),
    "faust.transport.conductor:Conductor._update_tp_index": ("34f9b85a1157", "kafka/agent.py"),
    "mode.services:Service.__init__": ("1705e85a16dc", "kafka/lean_service.py"),
    "mode.services:Service._default_stop_exit_stacks": ("9324d49cc607", "kafka/lean_service.py"),
    "mode.utils.locks:Event": ("1704d8006b27", "kafka/lean_service.py"),
    "faust.tables.recovery:Recovery.on_rebalance": ("23169b7f9f5b", "kafka/table.py, NoRecovery"),
    "faust.tables.recovery:Recovery._restart_recovery": ("3aa9414b3185", "kafka/table.py, NoRecovery"),
    "faust.tables.recovery:Recovery._build_highwaters": ("c9203d46cbd6", "kafka/table.py, NoRecovery"),
    "faust.tables.recovery:Recovery._build_offsets": ("2597680d7fa5", "kafka/table.py, NoRecovery"),
    "faust.tables.recovery:Recovery._seek_offsets": ("d0e537cddabd", "kafka/table.py, NoRecovery"),
    "aiokafka.consumer.subscription_state:SubscriptionState": ("6873f07eff7a", "kafka/group/steady_subscription.py"),
    "aiokafka.consumer.subscription_state:Subscription": ("d208f7418ea7", "kafka/group/steady_subscription.py"),
    "aiokafka.consumer.subscription_state:Assignment": ("c5b6ac9168aa", "kafka/group/steady_subscription.py"),
    "aiokafka.consumer.subscription_state:TopicPartitionState": ("818a98ee8731", "kafka/group/steady_subscription.py"),
    "aiokafka.consumer.group_coordinator:GroupCoordinator.ensure_active_group": (
        "31c20f4e1c2c",
        "kafka/consumer_thread.py",
    ),
    "aiokafka.consumer.group_coordinator:GroupCoordinator.request_rejoin": ("b2d45f3681d6", "kafka/consumer_thread.py"),
    "aiokafka.consumer.group_coordinator:GroupCoordinator._push_error_to_user": (
        "20f5f44ce41f",
        "kafka/consumer_thread.py, ConsumerThread.refusal",
    ),
    "faust.transport.consumer:Consumer.on_partitions_revoked": ("2550a9105d4c", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer.on_partitions_assigned": ("0e5b1be4b419", "kafka/transport.py, BatchConsumer"),
    "aiokafka.consumer.group_coordinator:GroupCoordinator._perform_assignment": (
        "b2065643ec3d",
        "kafka/group/steady_coordinator.py",
    ),
    "aiokafka.client:AIOKafkaClient.set_topics": ("769b2e2f78f4", "kafka/group/steady_coordinator.py"),
    "faust.assignor.partition_assignor:PartitionAssignor._protocol_assignments": (
        "e85c022fc7d6",
        "kafka/group/assignor.py",
    ),
    "faust.assignor.partition_assignor:PartitionAssignor._get_changelog_distribution": (
        "13a18802d9ba",
        "kafka/group/assignor.py",
    ),
    "faust.assignor.partition_assignor:PartitionAssignor._get_external_topic_distribution": (
        "29daccf0e71c",
        "kafka/group/assignor.py",
    ),
    "faust.assignor.partition_assignor:PartitionAssignor.on_assignment": ("53f58cd349fd", "kafka/group/assignor.py"),
    "faust.assignor.partition_assignor:PartitionAssignor._perform_assignment": (
        "f3508303ee37",
        "kafka/group/assignor.py",
    ),
    "mode.utils.queues:FlowControlEvent": ("1334151779d5", "kafka/transport.py, BatchConsumer"),
    "faust.types.web": ("9ffaa4d63938", "kafka/lean_faust.py"),
    "faust.serializers.codecs": ("af96287f9869", "kafka/lean_faust.py"),
    "aiokafka.coordinator.protocol:ConsumerProtocolMemberMetadata": ("11b5de0cda68", "kafka/group/member.py"),
    "faust.app.base:App.agent": ("d9b2a7ec1f2d", "kafka/agent.py"),
    "faust.app.base:App._on_partitions_assigned": ("6a8bb930f6ed", "application.py"),
    "faust.app.base:App._on_partitions_revoked": ("0179134ab901", "application.py"),
}


def found(part: str) -> Any:
    module, _, path = part.partition(":")
    one: Any = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        one = getattr(one, name)
        if inspect.isclass(one):  # lapse puts its own class in the place of some
            one = next(kind for kind in inspect.getmro(one) if not kind.__module__.startswith("lapse."))
    return getattr(one, "fun", one)  # what mode's `Service.task` wraps


def fingerprint(part: str) -> str:
    """Of the source without its white space, so that it is the same with every Python."""
    return hashlib.sha256(" ".join(inspect.getsource(inspect.unwrap(found(part))).split()).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", PINNED)
def test_what_is_patched_is_pinned_exactly(name: str) -> None:
    worker = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["worker"]
    assert name == "mode-streaming" or f"{name}=={PINNED[name]}" in worker, (
        f"pin {name} exactly: its internals are used"
    )
    assert version(name) == PINNED[name], f"{name} {version(name)} is not the version whose private parts were read"


@pytest.mark.parametrize("part", PARTS)
def test_a_private_part_is_what_it_was(part: str) -> None:
    known, where = PARTS[part]
    package = part.partition(".")[0]
    try:
        now = fingerprint(part)
    except (AttributeError, ImportError) as gone:
        pytest.fail(f"{part} is gone from this version of {package} ({gone}); runtime/{where} uses it", pytrace=False)
    assert now == known, (
        f"{part} changed in this version of {package}. Read it, check runtime/{where}, then write its new fingerprint "
        f"({now}) into {Path(__file__).name}"
    )


def test_only_the_room_for_it_touches_private_parts() -> None:
    """Elsewhere an attribute of another object that begins with `_` is one of lapse's or Python's own.

    Constants of librdkafka begin so as well, in capitals.
    """
    rooms = ROOT / "streams" / "lapse" / "runtime"
    trees = {path: ast.parse(path.read_text()) for path in rooms.rglob("*.py")}
    own = {attribute for tree in trees.values() for attribute in _set_on_self(tree)}
    touched = {
        f"{path.relative_to(rooms)}: {node.attr}"
        for path, tree in trees.items()
        if not path.is_relative_to(rooms / "kafka")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        if node.attr not in own | _PUBLIC
    }
    assert sorted(touched) == []


def test_only_the_room_for_it_imports_private_modules() -> None:
    """Elsewhere lapse imports what aiokafka and Faust document."""
    source = ROOT / "streams" / "lapse"
    imported = {
        f"{path.relative_to(source)}: {module}"
        for path in source.rglob("*.py")
        if not path.is_relative_to(source / "runtime" / "kafka")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in _imported(node)
        if module.partition(".")[0] in ("aiokafka", "faust", "mode") and module not in _PUBLIC_MODULES
    }
    assert sorted(imported) == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []


def _set_on_self(tree: ast.Module) -> Iterator[str]:
    """Private names that classes and functions of lapse define."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


if __name__ == "__main__":
    for one in PARTS:
        print(f"{one}  {fingerprint(one)}")
