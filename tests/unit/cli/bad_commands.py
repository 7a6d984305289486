"""Commands that are refused before anything is asked of Kafka: cases of test_bad_commands.py and docs/bad-input.md."""

from __future__ import annotations

import os
import shlex
from typing import Final, NamedTuple
from unittest import mock

from click.testing import CliRunner

from lapse.cli import main
from lapse.config.document import ConfigError, loads


class Case(NamedTuple):
    """A command that is refused.

    Attributes:
        line: what was typed, without `lapse`.
    """

    line: str

    @property
    def shown(self) -> str:
        """The command, as the page shows it."""
        return f"`{self.line}`"

    @property
    def message(self) -> str:
        """What is told."""
        with CliRunner().isolated_filesystem(), mock.patch.dict(os.environ, {"KAFKA_BOOTSTRAP_SERVERS": "localhost:1"}):
            done = CliRunner().invoke(main, shlex.split(self.line))
        assert done.exit_code in (1, 2), done.output
        return done.output.split("Error: ", 1)[1].strip()


class Key(NamedTuple):
    """Settings of a queue that are refused, or whole tables.

    Attributes:
        settings: as `lapse.toml` has them.
    """

    settings: str

    @property
    def shown(self) -> str:
        """The settings, as the page shows them."""
        return f"`{'`, `'.join(self.settings.splitlines())}`"

    @property
    def message(self) -> str:
        """What is told, without the line."""
        try:
            loads(self.settings if self.settings.startswith("[") else f"[queue.orders]\n{self.settings}")
        except ConfigError as error:
            return str(error).split(": ", 1)[1]
        return ""


COMMANDS: Final = [
    Case(line)
    for line in (
        "queue rewind orders --to soon",
        "queue rewind orders --to orders:x:1",
        "queue rewind orders --to end",
        "queue rewind orders --to beginning --lifetimes old",
        "transfer orders",
        "transfer orders --all",
        "transfer orders --to there:9092 --all --bookmark orders:0:1",
        "transfer orders --to there:9092 --follow --resume t-1",
        "transfer orders --to there:9092 --bookmark orders:0",
        "transfer orders --to there:9092 --filter '/price >'",
        "transfer orders --to there:9092 --all --to-queue 'a b'",
        "transfer orders --to there:9092 --all --max-clock-skew 1s",
        "transfer orders --to there:9092 --follow --max-clock-skew soon",
        "transfer orders --to there:9092 --follow --dry-run",
        "transfer orders --to there:9092 --all --id a/b",
        "transfer orders --to there:9092 --all --id ''",
        "transfer orders --to there:9092 --resume ''",
        "transfer orders --to there:9092 --cancel -1",
        "queue create orders lease_period",
        "queue create orders lease_period=5s lease_period=6s",
        "queue alter orders",
        "queue alter orders lease_period=5s --unset lease_period",
        "queue alter orders --unset 'lease period'",
        "queue alter orders lease_period=5s --version new",
        "sow alter prices",
        "sow create prices key",
        "simulate orders",
        "simulate orders --replay --recorded",
        "simulate orders --recorded --arrivals 5/s",
        "simulate orders --arrivals 5/s --since 2h",
        "simulate orders --replay --subscribers 3",
        "simulate orders --recorded --messages 5",
        "simulate orders --arrivals 5/s --subscribers 2,many",
        "simulate orders --arrivals 5/s --cancel 200%",
        "simulate orders --arrivals 5/s --for soon",
        "simulate orders --arrivals 5/s --messages 0",
        "simulate orders --recorded --since never",
        "simulate orders --recorded --since 7 --until 7",
        "simulate orders --arrivals 5/s --page nowhere/page.html",
        "replicate --to there:9092",
        "replicate",
        "replicate --to there:9092 --topic 'a b'",
        "replicate --to there:9092 --topic prices --topic prices=raw",
        "replicate --to there:9092 --topic prices --topic quotes=prices",
        "replicate --to there:9092 --topic prices=",
        "transfer orders --to there:9092 --all --to-topic 'a b'",
        "simulate orders --arrivals 5/s --backlog many",
        "simulate orders --arrivals 5/s --seed many",
        "publish orders x --header colour",
        "publish orders x --ttl-ms soon",
        "publish orders x --expires-at-ms soon",
        "publish orders x --enqueue-at-ms soon",
        "queue subscribe orders --count 0",
        "queue subscribe orders --max-backlog -1",
        "queue subscribe orders --settle twice",
        "queue subscribe orders --timeout soon",
        "queue subscribe orders --timeout nan",
        "top --every inf",
        "queue cancel orders --delay-ms -1",
        "queue expire orders --fault broken",
        "queue peek orders --skip -1",
        "queue peek orders --state lost",
        "queue peek orders --top-n 0",
        "dlq ls --kafka-config nowhere.properties",
        "dlq redrive orders --limit 0",
        "dlq redrive orders --max-redrives 0",
        "dlq redrive orders --rate 0",
        "dlq redrive orders --reason late",
        "dlq redrive orders --filter ''",
        "queue purge orders -b ''",
        "transfer orders --all --to ''",
        "transfer orders --all --to there:9092 --to-queue ''",
        "transfer orders --all --to there:9092 --to-topic ''",
        "transfer orders --all --to there:9092 -b ''",
        "replicate --from '' --to there:9092 --topic prices",
        "replicate --from here:9092 --to '' --topic prices",
        "spark ledger --queue orders --topics orders -b ''",
        "dlq redrive orders --entity ''",
        "dlq redrive orders --to ''",
        "dev --console-port 70000",
        "dev --port 70000",
        "dev --log-level loud",
        "worker --log-format xml",
        "replicate --log-format xml",
        "kafka start --heap-mb 1",
        "kafka start --property retention",
        "gateway --deployment west",
        "gateway --figures worker",
        "gateway --max-body 1",
        "gateway --tls-key me.key",
        "demo --flights 0",
        "demo --minutes 0",
        "demo --workers 0",
        "spark alerts out --at-least few",
        "spark alerts out --poison few",
        "spark alerts out --sigmas few",
        "spark alerts out --within-hours few",
        "spark alerts out --within-hours nan",
        "spark archive out --format csv",
        "spark archive out --max-records 0",
        "spark archive out --purge-before soon",
        "spark monitor out --horizon-hours few",
        "spark monitor out --every nonsense",
        "spark monitor out --window '1 fortnight'",
        "spark monitor out --horizon-hours 1e12",
        "spark redrive out --archive nowhere",
        "spark redrive out --field price",
        "spark redrive out --hook rule",
        "spark redrive out --filter ''",
        "spark redrive out --entity ''",
        "spark redrive out --to ''",
        "spark redrive out --to dlq.other",
        "spark report --ledger nowhere.json",
        "spark ledger --ask-every soon",
        "spark ledger --follow --grace 99999999d",
        "spark ledger --conf spark",
        "spark ledger --event-schema nowhere.avsc",
        "spark ledger --expected-depth few",
        "spark ledger --horizon soon",
    )
]
ELSEWHERE: Final = {
    **dict.fromkeys(
        ("--bootstrap-servers", "--from", "--host", "--master"),
        "an address: whether somebody answers there is asked, and tests/integration/commands say what is told",
    ),
    **dict.fromkeys(
        ("--dead-letter-topic", "--id", "--key", "--message-id", "--pattern", "--allow-host"),
        "a name: any text may be one, and Kafka, a shard or the definitions say whether there is one",
    ),
    **dict.fromkeys(
        ("--data", "--data-dir", "--audit", "--report", "--tls-certificate", "--webhook"),
        "a place to write to or to read: what stands there is found out when it is used",
    ),
    **dict.fromkeys(
        ("--select", "--order-by"), "the shard reads it, and its refusals are among those of commands to a SOW topic"
    ),
    "--set": "a key of lapse.toml with its value, whose refusals are those of the keys",
}
"""Options with a value that have no refusal of their own before Kafka is asked, and why."""

KEYS: Final = [
    Key(settings)
    for settings in (
        'retry = "1s"',
        'retry = { delay = "soon" }',
        "retry = { factor = 2 }",
        'retry = { delay = "1s", factor = 0.5 }',
        'retry = { delay = "1s", jitter = 2 }',
        'retry = { delay = "1s", max_delay = "10ms" }',
        'retry = { delay = "1s", on = ["never"] }',
        'retry = { delay = "1s", on = [] }',
        'retry = { delay = "1s", tries = 3 }',
        "group_limit = 2",
        'group_limit = 0\ngroup_by = "/a"',
        'group_rate = "10"\ngroup_by = "/a"',
        'rate = "0/1s"',
        'rate = "10/0s"',
        'rate = "10/1s"\npartitions = 2',
        'rate = "10/1s"\ntarget_queue_depth = 5',
        "group_weight = { a = 2 }",
        'group_weight = { a = 0 }\ngroup_by = "/a"',
        'group_by = "/a"\ngroup_limit = 2\ntarget_queue_depth = 5',
        'recovery_point = "middle"',
        'auto_delete_on_idle = "1m"',
        'topics = "orders"',
        'topics = ["a", "a"]',
        'topics = ["a/b"]',
        'topic_pattern = "("',
        'topic_pattern = "orders-.*"',
        'topic_expirations = { orders = "soon" }',
        'default_publish_target = "a b"',
        'default_publish_target = "elsewhere"',
        'semantics = "exactly-once"',
        'fairness = "fair"',
        'fairness = "fast"\nsemantics = "at-most-once"',
        'leasing = "loose"',
        "lease_period = 30",
        'lease_period = "0s"',
        'max_lease_period = "10s"',
        "max_per_subscription_backlog = -1",
        "max_deliveries = 70000",
        'max_cancels = "3"',
        'state = "ssd"',
        "state_memory = 0",
        'ordering = "global"',
        'priority = "/price >"',
        'priority = "/price"\npartitions = 2',
        "barrier = \"/type = 'EOD'\"",
        'barrier = "type"\nordering = "total"',
        'group_by = "/"',
        "target_queue_depth = 0",
        'forward_to = "orders"',
        'forward_to = "lapse.orders.commands"',
        'expiration = "0s"',
        'expiration = "late"',
        'expiration_model = "max"',
        "dead_letter = 5",
        'dead_letter = "lapse.letters"',
        'dead_letter_reasons = ["too_late"]',
        "partitions = 0",
        'heartbeat_timeout = "0s"',
        'heartbeat_timeout = "1ms"',
        "payload_window = 0",
        'retention = "for ever"',
        "dedup_window = 120",
        'on_expire = "rule"',
        'on_expire_timeout = "0s"',
        'value_format = "xml"',
        'value_format = "avro"',
        'value_schema = 7\nvalue_format = "avro"',
        'value_writer_schemas = "old.avsc"',
        "lease = 5",
        '[sow.prices]\ntopic = "a b"',
        '[sow.prices]\nkey = "symbol"',
        '[sow.prices]\nhash_index = ["price >"]',
        '[sow.prices]\nremember_removed = "0s"',
        '[lapse]\ndefinitions = "both"',
        '[lapse]\napp_id = "a b"',
        '[lapse]\nbootstrap_servers = ""',
        "[lapse]\nreplication_factor = 0",
        '[lapse]\nstore = "disk"',
        '[lapse]\nstandby = "yes"',
        "[lapse]\ndata_dir = 5",
        "[lapse]\nmax_clock_skew = 1",
        '[lapse]\nsession_timeout = "1ms"',
        "[lapse]\nmetrics_port = 70000",
        "[lapse]\nmetrics_host = 5",
        "[lapse]\ncommand_schema_id = -1",
        "[lapse]\ncommand_schema_id = 1",
        '[security]\nprotocol = "TLS"',
        '[security]\nprotocol = "SASL_SSL"',
        '[security]\nsasl_mechanism = "GSSAPI"',
        "[security]\npassword = 5",
        "[security]\nca_file = 5",
        '[security]\ncertificate_file = "me.pem"',
        '[security]\nkey_file = "me.key"',
        '[security]\nprincipal = "workers"',
        "[security]\nworker_key_file = 5",
        '[users."a b"]\nkey_env = "KEY"',
        "[users.a]",
        "[users.a]\nkey_file = 5",
        "[users.a]\nkey_env = 5",
        '[users.a]\nkey_env = "KEY"\nprincipal = "alice"',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements."("]\nread = true',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]\nread = "all"',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]\npublish = 5',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]\nadmin = "all"',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]\ncreate = "some"',
        '[users.a]\nkey_env = "KEY"\n[users.a.entitlements.orders]\nread = true\nfilter = "/desk ="',
        '[topic.orders]\nexpiration = "soon"',
        '[topic.orders]\nexpiration = "5s"',
        '[users.a]\nkey_file = "a.key"\n[users.a.entitlements.orders]\ndefine = true',
    )
]
