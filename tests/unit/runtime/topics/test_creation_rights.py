"""What a user needs to define an entity (C67)."""

from typing import Any

import pytest

from lapse.config import Config, loads
from lapse.core.error_code import ErrorCode
from lapse.protocol.command import Command
from lapse.runtime.topics.creation_rights import forbidden_settings, lacking
from lapse.runtime.topics.definition_draft import Refused
from lapse.runtime.topics.definition_request import read_request

USERS = """
[users.alice]
key_env = "A"
[users.alice.entitlements."mine.*"]
create = true
read = true
publish = true
[users.alice.entitlements.part]
read = true
filter = "/desk = 'A'"
[users.alice.entitlements.seen]
read = true
[users.alice.entitlements.sink]
publish = true
[users.alice.entitlements."eu[.].*"]
read = true
[users.root]
key_env = "R"
[users.root.entitlements.".*"]
create = true
read = true
publish = true
"""


def config(text: str) -> Config:
    return loads(f"{text}\n{USERS}")


@pytest.mark.feature("C67")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[queue.mine]", ""),
        ("[sow.mine]\ntopic = 'seen'", ""),
        ("[queue.mine]\ntopics = ['seen', 'mine']\ndead_letter = 'sink'\nforward_to = 'sink'", ""),
        ("[queue.mine]\ntopics = ['seen', 'part']", "read without a filter on part"),
        ("[queue.mine]\ntopics = ['hidden']", "read on hidden"),
        ("[sow.mine]\ntopic = 'hidden'", "read on hidden"),
        ("[queue.mine]\ndead_letter = 'seen'", "publish on seen"),
        ("[queue.mine]\nforward_to = 'hidden'", "publish on hidden"),
        ("[queue.mine]\nforward_to = 'sink'\n[queue.hidden]\ntopics = ['sink']", "publish on hidden"),
        ("[queue.mine]\nforward_to = 'seen'\n[queue.seen]\ntopics = ['sink']", "publish on seen"),
        ("[queue.mine]\ntopic_pattern = 'eu[.].*'\ndefault_publish_target = 'eu.1'", ""),
        (
            "[queue.mine]\ntopic_pattern = 'eu.*'\ndefault_publish_target = 'eu.1'",
            "unfiltered read on the pattern 'eu.*', or on '.*'",
        ),
    ],
)
def test_what_is_lacking_is_named(text: str, why: str) -> None:
    assert lacking(config(text), "mine", "alice") == why
    assert lacking(config(text), "mine", "root") == ""
    assert lacking(config(text), "mine", "nobody") == "create on mine"


@pytest.mark.feature("C67")
def test_the_right_is_on_the_name() -> None:
    assert lacking(config("[queue.yours]"), "yours", "alice") == "create on yours"
    assert set(config("").creators()) == {"alice", "root"}


@pytest.mark.feature("C67", "X7")
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"on_expire": "os:system"}, "on_expire names code"),
        ({"value_schema": "/etc/passwd"}, "/etc/passwd is no file beside"),
        ({"value_schema": "a/../../b"}, "is no file beside"),
        ({"value_writer_schemas": ["a.avsc", "../b.avsc"]}, "../b.avsc is no file beside"),
        ({"value_writer_schemas": {"7": "/b.avsc"}}, "/b.avsc is no file beside"),
        ({"value_writer_schemas": 7, "value_schema": ["x"]}, ""),
        ({"value_schema": "orders.avsc", "on_expire": None}, ""),
    ],
)
def test_no_client_names_code_or_files_elsewhere(settings: dict[str, Any], why: str) -> None:
    advice = forbidden_settings(settings)
    assert (why in advice) if why else advice == ""


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        (Command(command="depth"), ErrorCode.UNKNOWN_COMMAND, "definitions know alter_queue"),
        (Command(command="create_queue"), ErrorCode.INVALID_ARGUMENT, "field entity"),
        (Command(command="create_queue", entity="a", settings="{"), ErrorCode.INVALID_ARGUMENT, "settings: no JSON"),
        (
            Command(command="create_queue", entity="a", settings='{"max_deliveries":1,"max_deliveries":2}'),
            ErrorCode.INVALID_ARGUMENT,
            "settings: key 'max_deliveries' is there twice",
        ),
        (Command(command="create_sow", entity="a", settings="[]"), ErrorCode.INVALID_ARGUMENT, "a JSON object"),
        (
            Command(command="create_sow", entity="a", version=1),
            ErrorCode.INVALID_ARGUMENT,
            "a new entity has no version yet; leave it out",
        ),
        (Command(command="alter_queue", entity="a"), ErrorCode.INVALID_ARGUMENT, "names nothing that changes"),
    ],
)
def test_what_is_no_request_is_refused(command: Command, code: ErrorCode, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read_request(command, "alice")
    assert refused.value.refusal.code is code
