"""What lapse overrides or calls of other packages' private parts is as it was when it was read, and in one room each.

aiokafka and Faust are pinned exactly. A new version of one fails here first, part by part: read what changed, see that
lapse still does the right thing with it, and write the new fingerprint.

python tests/unit/runtime/test_private_parts.py      prints the fingerprints of what is installed
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.suite.statement import imports

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

ROOMS: dict[str, tuple[frozenset[str], tuple[str, ...], frozenset[str]]] = {
    # package: (its modules' first names, where its private parts may be used, names that are meant to be overridden)
    "Faust": (frozenset({"aiokafka", "faust", "mode"}), ("lapse.runtime.kafka.",), frozenset()),
    "PySpark": (frozenset({"pyspark", "py4j"}), ("lapse_spark.jvm", "lapse_spark.java_names"), frozenset()),
    "uvicorn": (frozenset({"uvicorn", "starlette"}), ("lapse_gateway.http_connection",), frozenset()),
    "kombu": (
        frozenset({"kombu", "celery"}),
        ("lapse_kombu.channel",),
        frozenset({"_new_queue", "_has_queue", "_size", "_purge", "_delete", "_put", "_put_fanout", "_queue_bind"}),
    ),
    "confluent-kafka": (frozenset({"confluent_kafka"}), ("lapse_client.payload.serde",), frozenset()),
    "click and rich": (frozenset({"click", "rich"}), (), frozenset()),
}

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
        "kafka/group_member.py, GroupMember",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._commit": (
        "f4f95a22defe",
        "kafka/group_member.py, GroupMember",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.getmany": (
        "6d95f339e9fc",
        "kafka/group_member.py, GroupMember",
    ),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._fetch_records": (
        "17bb4a98ab83",
        "kafka/group_member.py, GroupMember",
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
    "mode.threads:ServiceThread": ("7a54cbbbc029", "kafka/group_member.py, GroupMember"),
    "mode.threads:QueueServiceThread": ("abcd88f27e36", "kafka/group_member.py, GroupMember"),
    "mode.services:Service._get_tasks": ("8013c7e6729e", "kafka/group_member.py, GroupMember"),
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
        "kafka/group_member.py",
    ),
    "aiokafka.consumer.group_coordinator:GroupCoordinator.request_rejoin": ("b2d45f3681d6", "kafka/group_member.py"),
    "aiokafka.consumer.group_coordinator:GroupCoordinator._push_error_to_user": (
        "20f5f44ce41f",
        "kafka/group_member.py, GroupMember.refusal",
    ),
    "faust.transport.consumer:Consumer.on_partitions_revoked": ("2550a9105d4c", "kafka/transport.py, BatchConsumer"),
    "faust.transport.consumer:Consumer.on_partitions_assigned": ("0e5b1be4b419", "kafka/transport.py, BatchConsumer"),
    "aiokafka.consumer.group_coordinator:GroupCoordinator.commit_offsets": (
        "a7cbc3d51742",
        "kafka/group/steady_coordinator.py",
    ),
    "aiokafka.consumer.group_coordinator:GroupCoordinator._perform_assignment": (
        "b2065643ec3d",
        "kafka/group/steady_coordinator.py",
    ),
    "aiokafka.client:AIOKafkaClient.set_topics": (
        "769b2e2f78f4",
        "kafka/group/steady_coordinator.py; kafka/metadata.py, ensure_group_metadata",
    ),
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
    "faust.app.base:App._on_partitions_assigned": ("6a8bb930f6ed", "kafka/group/steady_app.py"),
    "faust.app.base:App._on_partitions_revoked": ("0179134ab901", "kafka/group/steady_app.py"),
    "faust.stores.base:Store": ("1f81fd814f35", "kafka/table_store.py"),
    "mode.worker:Worker._schedule_shutdown": ("79d88a4c5602", "kafka/worker_process.py"),
    "mode.services:Service._actually_start": ("560bc7529915", "kafka/lean_service.py"),
    "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol": ("a09bf31da2d5", "lapse_gateway/http_connection.py"),
    "kombu.transport.virtual.base:Channel._inplace_augment_message": ("9551ca4e1a5b", "lapse_kombu/channel.py"),
    "kombu.transport.virtual.base:Channel.basic_publish": ("6a995e375bac", "lapse_kombu/channel.py"),
}


def found(part: str) -> Any:
    module, _, path = part.partition(":")
    one: Any = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        one = getattr(one, name)
        if inspect.isclass(one):  # lapse puts its own class in the place of some
            one = next(kind for kind in inspect.getmro(one) if not kind.__module__.startswith("lapse."))
    return getattr(one, "fun", one)  # what mode's `Service.task` wraps


def _in_tree(where: str) -> str:
    return where if where.startswith("lapse_") else f"runtime/{where}"


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


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_private_part_is_what_it_was(part: str) -> None:
    known, where = PARTS[part]
    package = part.partition(".")[0]
    try:
        now = fingerprint(part)
    except (AttributeError, ImportError) as gone:
        pytest.fail(f"{part} is gone from this version of {package} ({gone}); {_in_tree(where)} uses it", pytrace=False)
    assert now == known, (
        f"{part} changed in this version of {package}. Read it, check {_in_tree(where)}, then write its new "
        f"fingerprint ({now}) into {Path(__file__).name}"
    )


@pytest.mark.parametrize("part", PARTS)
def test_the_file_that_overrides_or_calls_a_private_part_is_there(part: str) -> None:
    """The file after the fingerprint, which a reader of a failure looks up."""
    files = [one.partition(",")[0] for one in PARTS[part][1].split("; ")]
    roots = [ROOT / "streams" / "lapse", ROOT / "streams" / "lapse" / "runtime", ROOT / "connectors"]
    assert [file for file in files if not any((root / file).is_file() for root in roots)] == []


@pytest.mark.parametrize("package", ROOMS)
def test_only_the_room_for_it_imports_private_modules(package: str) -> None:
    """Elsewhere lapse imports what aiokafka and Faust document, and of others nothing whose name begins with `_`."""
    foreign, rooms, _ = ROOMS[package]
    imported = {
        f"{name}: {module}"
        for name, text in _texts().items()
        if not name.startswith(rooms) and _may_know(text, foreign)
        for module in _imported(name)
        if module.partition(".")[0] in foreign
        if "._" in module or (package == "Faust" and module not in _PUBLIC_MODULES)
    }
    assert sorted(imported) == []


@pytest.mark.parametrize("package", ROOMS)
def test_only_the_room_for_it_overrides_or_calls_private_methods(package: str) -> None:
    """A class of lapse that stands on another package's class leaves its private methods alone, outside the room."""
    foreign, rooms, extension_points = ROOMS[package]
    used = {
        f"{kind.__module__}.{kind.__name__}: {name}"
        for kind in _classes(foreign)
        if not kind.__module__.startswith(rooms)
        for base in inspect.getmro(kind)
        if base.__module__.partition(".")[0] in foreign
        for name in _private_names(kind) & vars(base).keys() - extension_points
    }
    assert sorted(used) == []


@pytest.mark.slow
@pytest.mark.parametrize("package", ROOMS)
def test_only_the_room_for_it_reaches_for_private_attributes(package: str) -> None:
    """Such an attribute is one that no class of lapse has, of another object than `self`.

    Constants of librdkafka begin with `_` as well, in capitals.
    """
    foreign, rooms, _ = ROOMS[package]
    reached = {
        f"{name}: {attribute}"
        for name, text in _texts().items()
        if not name.startswith(rooms) and _may_know(text, foreign)
        for attribute in _reached_in(name) - _own()
    }
    assert sorted(reached) == []


@cache
def _own() -> set[str]:
    """The private attributes that a class of lapse has."""
    defined = re.compile(r"(?:def |^ +)(_\w+)(?:\(|:)", re.MULTILINE)
    return _PUBLIC | {name for text in _texts().values() for name in defined.findall(text)}


@cache
def _reached_in(module: str) -> frozenset[str]:
    """The private attributes of other objects that a module reads."""
    return frozenset(name for node in ast.walk(_tree(module)) if re.match(r"_[a-z]", name := _reached(node)))


def _reached(node: ast.AST) -> str:
    """The attribute of another object that an expression reads, also by `getattr`; empty if it reads none."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return ""
        case ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return name
    return ""


def _modules() -> dict[str, Path]:
    """The modules of all packages, by their names."""
    roots = [ROOT / "streams" / "lapse", *(ROOT / "connectors").glob("lapse_*")]
    return {
        ".".join(file.relative_to(root.parent).with_suffix("").parts): file
        for root in roots
        for file in root.rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py", "app.py")  # the last starts a worker
    }


@cache
def _texts() -> dict[str, str]:
    return {name: file.read_text("utf-8") for name, file in _modules().items()}


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_texts()[module])


def _may_know(text: str, foreign: Collection[str]) -> bool:
    """Whether a module imports a package, or for Faust a class of lapse that may stand on one of its classes."""
    named = [*foreign, *(["lapse.runtime.kafka"] if "faust" in foreign else [])]
    return re.search(rf"^ *(from|import) ({'|'.join(named)})\b", text, re.MULTILINE) is not None


def _classes(foreign: Collection[str]) -> Iterator[type]:
    for module in (name for name, text in _texts().items() if _may_know(text, foreign)):
        for one in list(vars(importlib.import_module(module)).values()):
            if inspect.isclass(one) and one.__module__ == module:
                yield one


def _private_names(kind: type) -> set[str]:
    """The private names that a class defines, or uses of another object or of itself."""
    names = {name for name in vars(kind) if re.match(r"_[a-z]", name)}
    for method in vars(kind).values():
        if inspect.isfunction(method):
            names.update(name for name in method.__code__.co_names if re.match(r"_[a-z]", name))
    return names - {"_abc_impl"}


@cache
def _imported(module: str) -> frozenset[str]:
    """What a module imports, wherever it does so."""
    found = set[str]()
    for node in imports(_texts()[module]):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return frozenset(found)


if __name__ == "__main__":
    for one in PARTS:
        print(f"{one}  {fingerprint(one)}")
