"""The `lapse` command. Each subcommand is in a module of its own, which is loaded when it is used.

So `lapse publish` works without Faust and Spark, and `lapse --help` is quick.

Exit codes: 0 done, 1 not done (the message on standard error says why and what to do), 2 wrong usage.
"""

import os
from collections.abc import Mapping

import click

from lapse import __version__
from lapse.cli.lazy_group import Lazy, LazyGroup

COMMANDS: Mapping[str, Lazy] = {
    "apply": Lazy("lapse.cli.topology:apply", "Create the topics that lapse.toml needs.", extra="worker"),
    "check": Lazy("lapse.cli.topology:check", "Check whether the cluster fits lapse.toml.", extra="worker"),
    "definitions": Lazy(
        "lapse.cli.definition:definitions", "Show the definitions of a deployment, by version.", extra="worker"
    ),
    "worker": Lazy("lapse.cli.worker:worker", "Run a worker, which serves queues and SOW topics.", extra="worker"),
    "completion": Lazy(
        "lapse.cli.completion:completion", "Print a script that makes a shell complete commands and options."
    ),
    "dev": Lazy(
        "lapse.cli.dev:dev",
        "Run a broker, the topics of lapse.toml, a worker and the console.",
        extra="worker,java",
    ),
    "doctor": Lazy(
        "lapse.cli.doctor:doctor",
        "Check for common faults: Java, versions, topics, rights, clocks, workers.",
        extra="worker",
    ),
    "publish": Lazy("lapse.cli.publish:publish", "Publish to a topic, or to a queue's default target."),
    "queue": Lazy(
        "lapse.cli.queue:queue",
        "Receive and settle messages; inspect, create, alter and delete queues.",
    ),
    "dlq": Lazy("lapse.cli.dlq:dlq", "Show dead letters, send them back, or delete them."),
    "explain": Lazy("lapse.cli.explain:explain", "Show what happened to one message, from arrival to end."),
    "gateway": Lazy(
        "lapse.cli.gateway:gateway", "Serve queues, SOW topics and the console over HTTP.", extra="gateway"
    ),
    "replicate": Lazy(
        "lapse.cli.replicate:replicate", "Copy SOW topics to another deployment, with their deadlines.", extra="worker"
    ),
    "simulate": Lazy(
        "lapse.cli.simulate:simulate",
        "Simulate a queue: which messages would be served, and which would expire.",
        extra="worker",
    ),
    "sow": Lazy("lapse.cli.sow:sow", "Query, follow and delete records; create, alter and delete SOW topics."),
    "spark": Lazy(
        "lapse.cli.spark:spark", "Count, archive, redrive and audit dead letters with Apache Spark.", extra="spark"
    ),
    "transfer": Lazy(
        "lapse.cli.transfer:transfer",
        "Hand messages over to a queue of another deployment, with their deadlines.",
        extra="worker",
    ),
    "top": Lazy("lapse.cli.top:top", "Show queues live: depth by state, age, subscriptions."),
    "kafka": Lazy("lapse.cli.kafka:kafka", "Start, show and stop a local Kafka broker.", extra="worker"),
    "demo": Lazy("lapse.cli.demo:demo", "Send a year of real flights through a queue.", extra="worker,spark,demo"),
}
"""All subcommands by name. Keep the summaries equal to the first lines of the commands' help."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lapse")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Message lifetimes, leases and queues for Apache Kafka."""
    if os.environ.get("NO_COLOR"):  # rich obeys it by itself, click does not
        ctx.color = False
