"""The configuration of a queue (`[queue.<name>]`) and of a SOW topic (`[sow.<name>]`)."""

from __future__ import annotations

import re
from binascii import crc32
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from lapse.config import expiry_function
from lapse.config.duration import DurationMs, PeriodMs
from lapse.config.fault import first_repeated, setting_error
from lapse.config.payload import PayloadConfig
from lapse.config.recovery_point import RecoveryPoint
from lapse.config.retry import RetryConfig
from lapse.config.shares import GroupLimit, GroupWeight, RateSetting, check_shares
from lapse.config.topic_name import TopicName, legal_topic
from lapse.core.duration import duration_ms, is_duration
from lapse.core.expression import ExpressionError, compile_filter, compile_value
from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.queue.modes import Fairness, Leasing, Semantics
from lapse.core.reason import QUEUE_DEAD_LETTER_REASONS, SOW_DEAD_LETTER_REASONS, Reason
from lapse.core.sow.keys import field_path
from lapse.protocol import topic as topic_names
from lapse.protocol import topic_pattern as topic_patterns
from lapse.protocol.command_field import LEAST_HEARTBEAT_MS

if TYPE_CHECKING:
    from lapse.core.queue.settings import QueueSettings

LEAST_IDLE_MS: Final = 300_000
"""The least idle time after which an entity may delete itself, ms (Q18)."""


def _expiration(value: object) -> object:
    if value in ("disabled", "enabled"):
        return value
    if not is_duration(value):
        raise ValueError(f'expected "disabled", "enabled" or a duration such as "45s", not {value!r}')
    lifetime_ms = duration_ms(value)
    if not lifetime_ms:
        raise ValueError(
            f'{value!r} would remove every message as it comes; write "enabled" where only lifetimes of their own count'
        )
    return lifetime_ms


ExpirationSetting = Annotated[Literal["disabled", "enabled"] | int, BeforeValidator(_expiration)]


def _pattern(value: str | None) -> str | None:
    if value is not None:
        if value.count("(") > _MOST_GROUPS:
            raise ValueError(f"has more than {_MOST_GROUPS} groups; write a simpler pattern")
        try:
            re.compile(value)
            topic_patterns.compiled(value)  # fails if a comment at its end hides the closing parenthesis
        except (re.error, OverflowError) as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
    return value


_MOST_GROUPS: Final = 100
"""The greatest number of groups in a topic pattern, which clients may write, since Python parses groups recursively."""


def _letters(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected true, false or the name of a topic, not {value!r}")
    return legal_topic(value)


class EntityConfig(PayloadConfig):
    """The common settings of queues and SOW topics.

    Attributes:
        expiration: `"disabled"`, `"enabled"`, or the lifetime of messages that state none, ms (L6).
        expiration_model: whether a message's own lifetime overrides the default, or the default is the maximum (L7).
        dead_letter: whether removed messages become dead letters, or the topic for them (D1).
        dead_letter_reasons: reasons that cause a dead letter; the default depends on the kind of entity (C25).
        partitions: number of partitions of the topics that `lapse apply` creates; existing topics keep theirs.
        heartbeat_timeout: silence after which a subscription is lost, ms (Q5).
        payload_window: memory for the payloads that a shard keeps, MiB.
        retention: how long deliveries, events and commands are kept, ms.
        dedup_window: a message whose `lapse-message-id` was seen within this time is dropped, ms; 0 = none is (X6).
        auto_delete_on_idle: an entity without use for this time deletes itself, ms, at least 5 minutes (Q18, C39).
        on_expire: `"package.module:function"`, which is called with a copy of each message that leaves (L15).
        on_expire_timeout: time limit of a call, ms (C26).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    expiration: ExpirationSetting = "disabled"
    expiration_model: ExpirationModel = ExpirationModel.OVERRIDE
    dead_letter: Annotated[bool | str, BeforeValidator(_letters)] = True
    dead_letter_reasons: tuple[Reason, ...] | None = None
    partitions: int = Field(default=1, ge=1, le=10_000, strict=True)
    heartbeat_timeout: PeriodMs = 10_000
    payload_window: int = Field(default=64, ge=1, strict=True)
    retention: PeriodMs = 86_400_000
    dedup_window: DurationMs = 120_000
    auto_delete_on_idle: DurationMs | None = None
    on_expire: expiry_function.FunctionName | None = None
    on_expire_timeout: PeriodMs = 10_000

    @field_validator("heartbeat_timeout")
    @classmethod
    def _check_heartbeat_timeout(cls, period_ms: int) -> int:
        if period_ms < LEAST_HEARTBEAT_MS:
            raise ValueError(
                f'has to be "{LEAST_HEARTBEAT_MS}ms" or more: clients send a heartbeat every third of it, through '
                "Kafka, and count as lost without one (C5)"
            )
        return period_ms

    @field_validator("auto_delete_on_idle")
    @classmethod
    def _check_idle_period(cls, period_ms: int | None) -> int | None:
        if period_ms is not None and period_ms < LEAST_IDLE_MS:
            raise ValueError("queues and SOW topics delete themselves after 5 minutes without use at the least (Q18)")
        return period_ms

    @field_validator("dead_letter_reasons")
    @classmethod
    def _refuse_repeated_reasons(cls, reasons: tuple[Reason, ...] | None) -> tuple[Reason, ...] | None:
        if (twice := first_repeated(reasons or ())) is not None:
            raise ValueError(f"{twice} is named twice")
        return reasons

    @model_validator(mode="after")
    def _ceiling_has_duration(self) -> Self:
        """Refuse a maximum that limits nothing, unless lifetimes are switched off on purpose (L7, L9)."""
        off = self.expiration == "disabled" and "expiration" in self.model_fields_set
        if self.expiration_model is ExpirationModel.CEILING and not off and not self.has_duration:
            raise setting_error(
                "expiration_model",
                '"ceiling" needs a duration that is the maximum: set expiration to one, such as "10m", or take it out '
                "(L7)",
            )
        return self

    @property
    def has_duration(self) -> bool:
        """Whether the settings state a lifetime for messages without one of their own."""
        return isinstance(self.expiration, int)

    @property
    def configured(self) -> str:
        """A fingerprint of the configuration, whose change counts as use of a temporary entity (C39)."""
        return f"{crc32(self.model_dump_json().encode()):08x}"

    def expiration_settings(self) -> Expiration:
        """Return the rule for lifetimes in the core's form."""
        default_ms = self.expiration if isinstance(self.expiration, int) else None
        return Expiration(self.expiration != "disabled", default_ms, self.expiration_model)

    def dead_letter_topic(self, name: str) -> str:
        """Return the topic for dead letters; empty = none are written (D1)."""
        if isinstance(self.dead_letter, str):
            return self.dead_letter
        return topic_names.dead_letters(name) if self.dead_letter else ""


class QueueConfig(EntityConfig):
    """The settings of a queue.

    Attributes:
        topics: its underlying topics; if left out, the topic with the queue's name (Q1, Q2).
        topic_pattern: a regular expression; topics whose full name matches belong to the queue as well, even if they
            are created later (Q2, C28).
        topic_expirations: by underlying topic, the topic's own lifetime, ms (L8).
        default_publish_target: the topic to which a publish to the queue's name goes (Q2).
        semantics: at-least-once or at-most-once (Q4).
        fairness: fast, round-robin or proportional (Q7).
        leasing: strict or sublet (Q8).
        lease_period: duration of a lease, ms (Q5).
        max_lease_period: longest lease that a renewal may ask for, ms; `lease_period` if left out (C17).
        max_per_subscription_backlog: cap on every subscription's backlog (Q3).
        max_deliveries: deliveries after which a message leaves; 0 = no limit (Q9).
        max_cancels: a message leaves if it was cancelled more often than this; 0 = no limit (Q9).
        retry: how long a returned message waits before its next delivery; not at all if left out (Q24).
        ordering: whether each partition has its own order, or all partitions and topics share one (Q17).
        priority: expression whose value orders messages, highest first (Q11).
        barrier: filter that matches messages that are barriers (Q12).
        group_by: expression whose value is a message's group; at most `group_limit` messages of a group are leased at
            once (Q20).
        rate: most deliveries in any window (Q25).
        group_rate: most deliveries of each group in any window (Q25).
        group_limit: most messages of a group that are leased at once; 1 also keeps the group in order (Q25).
        group_weight: by group value, the group's weight; others have 1 (Q25).
        target_queue_depth: most messages that are active at once; others are not read yet (Q13).
        forward_to: topic or queue that gets every deliverable message (Q21).
        recovery_point: where a new queue begins to read: `"beginning"`, `"end"`, an instant in ms since the epoch, or
            bookmarks (Q16).
        state: whether all state is in memory, or the part not needed now is on disk (Q16).
        state_memory: memory for segments of a shard with `state = "disk"`, MiB.
    """

    topics: tuple[TopicName, ...] = ()
    topic_pattern: Annotated[str | None, AfterValidator(_pattern)] = None
    topic_expirations: dict[TopicName, PeriodMs] = {}  # noqa: RUF012  # pydantic copies the default
    default_publish_target: TopicName | None = None
    semantics: Semantics = Semantics.AT_LEAST_ONCE
    fairness: Fairness | None = None
    leasing: Leasing = Leasing.SUBLET
    lease_period: PeriodMs = 30_000
    max_lease_period: PeriodMs | None = None
    max_per_subscription_backlog: int | None = Field(default=None, ge=0, strict=True)
    max_deliveries: int = Field(default=0, ge=0, le=65_000, strict=True)
    max_cancels: int = Field(default=0, ge=0, le=65_000, strict=True)
    retry: RetryConfig | None = None
    recovery_point: RecoveryPoint = "beginning"
    state: Literal["memory", "disk"] = "memory"
    state_memory: int = Field(default=64, ge=1, strict=True)
    ordering: Literal["partition", "total"] = "partition"
    priority: str | None = None
    barrier: str | None = None
    group_by: str | None = None
    rate: RateSetting | None = None
    group_rate: RateSetting | None = None
    group_limit: GroupLimit = 1
    group_weight: dict[str, GroupWeight] = {}  # noqa: RUF012  # pydantic copies the default
    target_queue_depth: int | None = Field(default=None, ge=1, strict=True)
    forward_to: TopicName | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.semantics is Semantics.AT_MOST_ONCE and self.fairness not in (None, Fairness.ROUND_ROBIN):
            raise setting_error(
                "fairness",
                f'"{self.fairness}" is not possible with semantics = "at-most-once"; only "round-robin" is (Q7)',
            )
        if (twice := first_repeated(self.topics)) is not None:
            raise setting_error("topics", f"{twice} is named twice")
        if self.topic_pattern is not None and self.default_publish_target is None and not self.topics:
            raise setting_error(
                "topic_pattern",
                "topic_pattern needs default_publish_target: the topic that a publish to the queue goes to",
            )
        if self.max_lease_period is not None and self.max_lease_period < self.lease_period:
            raise setting_error(
                "max_lease_period", "shorter than lease_period, which a renewal without a length asks for"
            )
        if self.barrier is not None and self.ordering != "total":
            raise setting_error(
                "barrier", 'barrier requires ordering = "total": a barrier waits for everything before it (Q17)'
            )
        if self.priority is not None and self.ordering != "total" and self.partitions > 1:
            raise setting_error(
                "priority", f'priority over {self.partitions} partitions requires ordering = "total" (Q17)'
            )
        if self.target_queue_depth is not None and (self.priority is not None or self.barrier is not None):
            raise setting_error("target_queue_depth", "is not possible together with priority or barrier (Q13)")
        check_shares(
            {
                "rate": self.rate is not None,
                "group_rate": self.group_rate is not None,
                "group_limit": self.group_limit > 1,
                "group_weight": bool(self.group_weight),
            },
            grouped=self.group_by is not None,
            bounded=self.target_queue_depth is not None,
            orders=1 if self.ordering == "total" else self.partitions,
        )
        for name, compiled in (("priority", compile_value), ("barrier", compile_filter), ("group_by", compile_value)):
            text = getattr(self, name)
            if text is not None:
                try:
                    compiled(text)
                except ExpressionError as error:
                    raise setting_error(name, str(error)) from error
        return self

    @property
    def has_duration(self) -> bool:
        """Whether the queue, or one of its topics, states a lifetime for messages without one of their own (L8)."""
        return super().has_duration or bool(self.topic_expirations)

    def underlying(self, name: str) -> tuple[str, ...]:
        """Return the underlying topics of the queue with a name."""
        return self.topics or (() if self.topic_pattern else (name,))

    def pattern(self) -> re.Pattern[str] | None:
        """Return the regular expression for the names of further underlying topics, never those of lapse (C28)."""
        return None if self.topic_pattern is None else topic_patterns.compiled(self.topic_pattern)

    def reads(self, topic: str) -> bool:
        """Return whether a topic is one of the queue's `topics`, or matches its pattern."""
        pattern = self.pattern()
        return topic in self.topics or (pattern is not None and pattern.fullmatch(topic) is not None)

    @property
    def shards_read_topics(self) -> bool:
        """Whether shards read their topics themselves, because Faust's assignment does not suit them."""
        return self.ordering == "total" or self.topic_pattern is not None

    def publish_target(self, name: str) -> str:
        """Return the topic to which a publish to the queue's name goes (Q2)."""
        return self.default_publish_target or (self.underlying(name) or ("",))[0]

    def settings(self, name: str, partition: int, shards: int = 1) -> QueueSettings:
        """Return the queue's settings in the form that a shard uses."""
        # Late imports: `lapse check` and most other commands need no numpy.
        from lapse.core.queue.arrival.trait import TraitReader
        from lapse.core.queue.delivery.retry import NO_RETRY
        from lapse.core.queue.settings import QueueSettings

        fairness = self.fairness
        if fairness is None:
            once = self.semantics is Semantics.AT_MOST_ONCE
            fairness = Fairness.ROUND_ROBIN if once else Fairness.PROPORTIONAL
        reasons = self.dead_letter_reasons
        avro = self.payload()
        return QueueSettings(
            name=name,
            partition=partition,
            semantics=self.semantics,
            fairness=fairness,
            leasing=self.leasing,
            expiration=self.expiration_settings(),
            topic_expirations_ms=dict(self.topic_expirations),
            lease_ms=self.lease_period,
            max_lease_ms=self.max_lease_period or self.lease_period,
            max_backlog=self.max_per_subscription_backlog,
            max_deliveries=self.max_deliveries,
            max_cancels=self.max_cancels,
            retry=NO_RETRY if self.retry is None else self.retry.rule(),
            heartbeat_timeout_ms=self.heartbeat_timeout,
            dedup_window_ms=self.dedup_window,
            idle_ms=self.auto_delete_on_idle or 0,
            configured=self.configured,
            shards=shards,
            dead_letter_topic=self.dead_letter_topic(name),
            dead_letter_reasons=QUEUE_DEAD_LETTER_REASONS if reasons is None else frozenset(reasons),
            target_depth=self.target_queue_depth,
            rate=self.rate,
            group_rate=self.group_rate,
            group_limit=self.group_limit,
            group_weights=self.group_weight,
            traits=TraitReader(
                priority=None if self.priority is None else compile_value(self.priority),
                barrier=None if self.barrier is None else compile_filter(self.barrier),
                group=None if self.group_by is None else compile_value(self.group_by),
            ),
            parse=orjson.loads if avro is None else avro.parse,
            value_format=self.value_format,
        )


class SowConfig(EntityConfig):
    """The settings of a SOW topic.

    Attributes:
        topic: its underlying topic; if left out, the topic with its name.
        key: paths of the payload that make the key; if left out, the record's key (S1).
        hash_index: paths of fields that are indexed for equality filters (S11).
        remember_removed: how long removed keys are protected from older updates of other deployments, ms (S10).
    """

    topic: TopicName | None = None
    key: tuple[str, ...] = ()
    hash_index: tuple[str, ...] = ()
    remember_removed: PeriodMs | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_path(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        single = {name: [tree[name]] for name in ("key", "hash_index") if isinstance(tree.get(name), str)}
        return {**tree, **single}

    @field_validator("key", "hash_index")
    @classmethod
    def _paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        if (twice := first_repeated(field_path.format_path(field_path.parse(path)) for path in paths)) is not None:
            raise ValueError(f"{twice} is named twice")
        return paths

    def underlying(self, name: str) -> tuple[str, ...]:
        """Return the underlying topic of the SOW topic with a name, as a tuple."""
        return (self.topic or name,)

    def publish_target(self, name: str) -> str:
        """Return the topic to which a publish to the SOW topic's name goes."""
        return self.underlying(name)[0]

    def shards_read_topics(self, shards: int) -> bool:
        """Return whether each of `shards` shards reads every partition itself, because keys are in payloads (C46)."""
        return bool(self.key) and shards > 1

    def letter_reasons(self) -> frozenset[Reason]:
        """Return the reasons that cause a dead letter (C25)."""
        return SOW_DEAD_LETTER_REASONS if self.dead_letter_reasons is None else frozenset(self.dead_letter_reasons)
